// The keyboard of all pages: the only script that listens to keys. What it guarantees, no page can break:
//
// - A key never decides. While a shortcut acts, no form can be sent: a shortcut opens, moves or shows.
// - A shortcut is live only while no form of the page is open or edited, no field or menu has the focus, and no modifier
//   is held.
// - Ctrl+Enter (on a Mac also ⌘ Enter) in an open form presses its button, if that is the only one in sight. Enter alone
//   sends nothing, but where a form says so (data-enter): a message of a chat.
// - Escape closes what was opened, and gives the focus back.
//
// A part of a page that is opened is a <details> with a form, or [data-opened]. What is opened gets the focus at once,
// in the same event: no letter is typed beside it.
const CONTROLS = "form, input, textarea, select, button";
const FIELDS = "input, textarea, select, [contenteditable], [role=menu] *, [role=listbox] *, [role=dialog] *";
const PARTS = "details[open], dialog[open], [data-opened]";
const shortcuts = new Map();
const openers = new WeakMap(); // by opened part: what had the focus
let isActing = false;

// Declare what keys do on this page: by key a function, or {run, repeats} for one that a held key repeats.
export function declareKeys(keys) {
  for (const [key, action] of Object.entries(keys)) {
    if (shortcuts.has(key)) throw new Error(`the key ${key} is declared twice`);
    shortcuts.set(key, typeof action === "function" ? { run: action } : action);
  }
}

const isShown = (element) => element.checkVisibility();
const listOpened = () => [...document.querySelectorAll(PARTS)].filter((part) => part.querySelector(CONTROLS) && isShown(part));
const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && /^[\p{L}\p{N}]$/u.test(event.key));

function isEdited(field) {
  if (field.type === "hidden" || field.type === "checkbox" || !isShown(field) || field.form?.method !== "post") return false;
  if (field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.type === "file") return field.files.length > 0;
  if (field instanceof HTMLSelectElement) return field.selectedIndex !== Math.max([...field.options].findIndex((option) => option.defaultSelected), 0);
  return field.value !== field.defaultValue;
}

function isLive() {
  const focused = document.activeElement;
  if (focused?.matches(FIELDS) || listOpened().length) return false;
  return ![...document.querySelectorAll("input, textarea, select")].some(isEdited);
}

// ---- what is opened and closed

// Open a part, with the focus in it; others beside it are closed.
export function openPart(part) {
  if (!part || part.open) return;
  openers.set(part, document.activeElement);
  const beside = part.closest("[data-one]");
  if (beside) for (const other of beside.querySelectorAll("details[open]")) if (!other.contains(part) && other.querySelector(CONTROLS)) other.open = false;
  part.open = true;
  focusFirst(part);
  part.scrollIntoView({ block: "nearest" });
}

// Focus the first field of a part; one without fields gets it itself, never a button: a blank would press that.
export function focusFirst(part) {
  const field = [...part.querySelectorAll("textarea, input:not([type=hidden]), select")].find((element) => isShown(element) && !element.disabled);
  const place = field ?? part.querySelector("form") ?? part;
  if (!field) place.tabIndex = -1;
  place.focus({ preventScroll: true });
}

export function closePart(part) {
  if (!(part instanceof HTMLDetailsElement)) { part.querySelector("[data-back]")?.click(); return; }
  part.open = false;
  const opener = openers.get(part);
  const back = opener?.isConnected && opener !== document.body && isShown(opener) ? opener : part.querySelector("summary");
  back?.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const summary = event.target.closest?.("summary");
  const part = summary?.parentElement;
  if (summary && part.querySelector(CONTROLS) && !event.target.closest("a, button, input")) {
    event.preventDefault(); // not left to the browser, which opens it after the event: keys would go elsewhere meanwhile
    if (part.open) closePart(part);
    else { summary.focus({ preventScroll: true }); openPart(part); }
  }
  // data-close also takes back what was typed; data-fold stands in a form whose other fields are in use.
  if (event.target.matches?.("[data-close], [data-fold]")) {
    event.preventDefault();
    if ("close" in event.target.dataset) event.target.form?.reset();
    closePart(event.target.closest(PARTS));
  }
});

// ---- keys

document.addEventListener("submit", (event) => {
  if (!isActing) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  console.error("a shortcut may not send a form");
}, true);

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing || event.keyCode === 229) return;
  if (event.key === "Escape" && !hasModifier(event)) {
    const opened = event.target.closest?.(PARTS);
    const part = (opened?.querySelector(CONTROLS) && opened) || listOpened().at(-1);
    if (part) { event.preventDefault(); closePart(part); return; }
  }
  if (event.key === "Enter") { pressEnter(event); return; }
  const shortcut = shortcuts.get(event.key);
  if (!shortcut || hasModifier(event) || (event.repeat && !shortcut.repeats) || !isLive()) return;
  event.preventDefault();
  isActing = true;
  try { shortcut.run(event); } finally { isActing = false; }
});

function pressEnter(event) {
  const part = event.target.closest?.(PARTS) ?? null;
  const form = event.target.form ?? event.target.closest?.("form") ?? part?.querySelector("form");
  // The disabled button that forms begin with keeps Enter from sending text fields; from these it would press the next one.
  if (form?.method === "post" && event.target.matches("input[type=radio], input[type=checkbox]")) event.preventDefault();
  if (!form || event.repeat || event.altKey || event.shiftKey) return;
  // On a phone Enter is a new line: there is no Shift.
  const isSent = form.dataset.enter === "send" && event.target.matches("textarea#text") && !matchMedia("(pointer: coarse)").matches;
  if (!(event.ctrlKey || event.metaKey)) {
    if (!isSent) return;
    event.preventDefault();
    form.requestSubmit(form.querySelector("[data-main]"));
    return;
  }
  event.preventDefault();
  const buttons = [...form.elements].filter((element) => element.type === "submit" && !element.disabled && isShown(element));
  const near = form.dataset.enter === "send" && !part ? buttons.filter((button) => "main" in button.dataset) : buttons.filter((button) => button.closest(PARTS) === part);
  if (near.length === 1) form.requestSubmit(near[0]);
}

// A link may lead to what is to be opened.
const linked = document.getElementById(location.hash.slice(1))?.closest("details");
if (linked?.querySelector(CONTROLS)) { linked.open = true; focusFirst(linked); }
