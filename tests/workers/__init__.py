"""Worker processes that tests start and kill: ``Engine.process("<module>", …)``."""
