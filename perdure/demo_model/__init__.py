"""The demo's small model: rules over files, behind the wire format of a real one."""
