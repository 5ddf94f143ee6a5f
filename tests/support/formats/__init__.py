"""The four wire formats, as tests see them: there and back, and what each cannot hold. This is what becomes of it.

    what                                         openai          openai-responses   anthropic          google
    ------------------------------------------------------------------------------------------------------------------
    id, by, model, usage, cost of a message      lost            lost               lost               lost
    opaque data and thinking of another origin   lost            lost               lost               lost
    thinking of its own without opaque data      lost            lost               lost               text kept
    arguments that are no JSON object            {}              {}                 {}                 {}
    that a result is an error                    lost            lost               kept               kept
    an error without words                       kept            kept               "Error."           kept
    blank texts                                  empty: lost     empty: lost (1)    blank: lost        empty: lost
    a reply of nothing else                      kept, empty     lost               lost               lost
    texts of a reply that follow each other      all joined (2)  joined (3)         kept               kept (4)
    order of a reply's parts                     (2)             kept               kept               kept
    texts of a user that follow each other       joined (5)      kept               kept               kept
    messages of a user that follow each other    kept            kept               joined             joined
    ids and names of calls that it refuses       replaced        replaced           replaced           kept
    a picture's name                             lost            lost               lost               in results kept
    a PDF's name                                 kept            kept               kept               in results kept
    a file of text                               text            kept               as text/plain      text
    a file of an unknown kind                    text            text               text               text

(1) of a reply; a user's stay. (2) thinking, then one text, then calls. (3) where none has an id of the API's own.
(4) also those with a signature between them. (5) where there is no file.
"""

from __future__ import annotations

from tests.support.formats import anthropic, google, openai_chat, openai_responses
from tests.support.formats.common import Format

__all__ = ["FORMATS", "Format"]

FORMATS = {
    "openai": openai_chat.FORMAT,
    "openai-responses": openai_responses.FORMAT,
    "anthropic": anthropic.FORMAT,
    "google": google.FORMAT,
}
