"""The console: pages for those who decide on calls, and for those who look after runs. Needs the extra ``server``.

The pages are rendered here, over the functions of :mod:`perdure.web`, and work without JavaScript.
"""

from .app import console_routes as console_routes

__all__ = ["console_routes"]
