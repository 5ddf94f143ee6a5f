"""Types into every form of a page, and compares before and after: nothing but the text may change."""

from __future__ import annotations

import string
from typing import Any, Literal

from tests.support.chromium import Window

Way = Literal["mouse", "key", "touch"]
"""How forms are opened."""
LETTERS = f"{string.ascii_lowercase} {string.ascii_uppercase} {string.digits} {string.punctuation} amount is wrong"
FIELDS = "textarea, input:not([type]), input[type=text], input[type=password]"

_STATE = """() => ({
    address: location.href,
    opened: [...document.querySelectorAll('details')].flatMap((part, index) => part.open ? [index] : []),
    chosen: [...document.querySelectorAll('.row.current')].map(row => row.id),
    decided: document.querySelectorAll('.row.decided, .settled, .outcome').length,
    ticked: [...document.querySelectorAll('input:checked')].map(box => box.name + box.value),
    forms: document.forms.length,
})"""
_SUMMARIES = """form => {
    const above = [];
    let part = form;
    while ((part = part.parentElement.closest('details'))) above.unshift(part);
    return above.filter(one => !one.open).map(one => one.querySelector('summary'));
}"""
_INNER = """form => [...form.querySelectorAll('details:not([open])')]
    .filter(one => one.querySelector('input, textarea')).map(one => one.querySelector('summary'))"""
_BY_ENTER = """form => form.method === 'get' || form.dataset.enter === 'send'
    || ![...form.elements].find(one => one.type === 'submit')?.disabled"""
_KINDS = """() => [...document.forms].map(form => {
    const fields = [...form.elements].filter(one => one.type !== 'hidden' || one.name === 'action');
    const names = fields.map(one => one.name + (['submit', 'hidden'].includes(one.type) ? one.value : ''));
    return names.join(' ') + form.closest('details')?.className;
})"""
_HTML = """index => { const form = document.forms[index].cloneNode(true);
    form.querySelector('[name=form_token]')?.remove();
    return `${location.pathname}: ${form.outerHTML.slice(0, 600)}`; }"""
_RESET = """form => { for (const one of form.elements) if (one.matches(FIELDS)) one.value = one.defaultValue; }"""


class Typist:
    """Types on a page whose forms are opened in one of three ways."""

    def __init__(self, window: Window, way: Way, *, every_field: bool = True) -> None:
        self.page = window.page
        self.way = way
        self.every_field = every_field
        self.sent: list[str] = []
        """What was sent: requests that are no GET."""
        self.typed = 0
        self.sends_by_enter: set[str] = set()
        """Forms that Enter sends, by their addresses."""
        self.page.on("request", lambda request: request.method != "GET" and self.sent.append(request.url))

    async def type_everywhere(self) -> None:
        """Open each form of the page, and type into it."""
        if box := await self.page.query_selector("input[type=checkbox][form]"):
            await box.check()  # some forms are there for what is ticked
        kinds: list[str] = await self.page.evaluate(_KINDS)
        for index, kind in enumerate(kinds):
            if kind in kinds[:index]:
                continue  # a row like another
            if not await self._type_into(index):  # what was typed elsewhere hides some forms
                await self.page.reload()
                assert await self._type_into(index), await self._get_html(index)

    async def _get_html(self, index: int) -> str:
        return str(await self.page.evaluate(_HTML, index))

    async def _type_into(self, index: int) -> bool:
        """Open the form, type into it and close it. False if it is not in sight then."""
        name = await self._get_html(index)
        form = (await self.page.evaluate_handle(f"document.forms[{index}]")).as_element()
        assert form is not None
        opened = [summary for summary in await self._list(form, _SUMMARIES) if await self._open(summary)]
        if not await form.is_visible():
            return not await form.evaluate("(form, fields) => form.querySelector(fields)", FIELDS)
        if opened:
            await self._type_where_the_focus_is(form, name)
        for summary in await self._list(form, _INNER):
            await self._open(summary)
            await self._type_where_the_focus_is(form, name)
            await self.page.keyboard.press("Escape")
        if self.every_field:
            for field in await form.query_selector_all(FIELDS):
                if await field.is_visible() and await field.is_enabled():
                    await (field.tap() if self.way == "touch" else field.click())
                    await self._type_where_the_focus_is(form, name)
        await form.evaluate(_RESET.replace("FIELDS", repr(FIELDS)))
        if opened:
            if await self.page.evaluate("document.activeElement.matches('select')"):
                await self.page.keyboard.press("Escape")  # closes its list of options
            await self.page.keyboard.press("Escape")
            assert not await opened[-1].evaluate("summary => summary.parentElement.open"), f"Escape leaves open {name}"
            assert await opened[-1].evaluate("summary => document.activeElement === summary"), f"no focus back: {name}"
            for summary in reversed(opened[:-1]):
                await summary.evaluate("summary => { summary.parentElement.open = false; }")
        return True

    async def _list(self, form: Any, script: str) -> list[Any]:
        found = await form.evaluate_handle(script)
        return [one.as_element() for _, one in sorted((await found.get_properties()).items()) if one.as_element()]

    async def _open(self, summary: Any) -> bool:
        if not await summary.is_visible():
            return False
        if self.way == "mouse":
            await summary.click()
        elif self.way == "touch":
            await summary.tap()
        else:
            await summary.focus()
            await self.page.keyboard.press("Enter")
        return True

    async def _type_where_the_focus_is(self, form: Any, name: str) -> None:
        """Type all characters, and Enter, where the focus is now."""
        before = await self.page.evaluate(_STATE)
        is_within = await form.evaluate("form => form.contains(document.activeElement)")
        assert is_within, f"{self.way}: the focus is not in what was opened: {name}"
        field = await self.page.evaluate_handle("document.activeElement")
        is_text = await field.evaluate("(one, fields) => one.matches(fields)", FIELDS)
        had = await field.evaluate("one => one.value ?? ''")
        await self.page.keyboard.press("Control+End")
        await self.page.keyboard.type(LETTERS)
        text = had + LETTERS
        if await form.evaluate(_BY_ENTER):
            self.sends_by_enter.add(
                await form.evaluate("form => form.method === 'get' ? 'GET' : form.id || form.action")
            )
        else:
            await self.page.keyboard.press("Enter")
            text += "\n" if await field.evaluate("one => one.matches('textarea')") else ""
        assert self.sent == [], f"{self.way}: typing sent {self.sent}: {name}"
        after = await self.page.evaluate(_STATE)
        if not is_text:  # a blank ticks the box that has the focus
            before, after = ({**one, "ticked": None} for one in (before, after))
        assert after == before, f"{self.way}: typing changed {before} to {after}: {name}"
        if is_text:
            limit = await field.evaluate("one => one.maxLength")
            assert await field.evaluate("one => one.value") == (text[:limit] if limit > 0 else text), name
            self.typed += 1
