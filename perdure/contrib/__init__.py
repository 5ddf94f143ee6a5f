"""Ready-made pieces on top of the public interface. Nothing of it is loaded unless it is imported."""
