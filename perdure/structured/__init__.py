"""Typed input and output: what a run is asked and answers as values of the author's types, and as XML for models.

:mod:`.output` is the ``__finish__`` tool, :mod:`.typed` what an agent declares; :mod:`.xml` and :mod:`.xml_reader` are
both ways between values and what stands in a message.
"""

from .output import OutputError, OutputType
from .typed import Typed
from .validators import OutputValidator
from .xml import template, to_xml
from .xml_reader import filled_in, from_xml

__all__ = [
    "OutputError",
    "OutputType",
    "OutputValidator",
    "Typed",
    "filled_in",
    "from_xml",
    "template",
    "to_xml",
]
