// What stands in the place of a call's forms while a decision can be taken back, and until it has its answer.
import { fetchPart, parseHTML, say, updateTimes } from "./console.js";

const EVERY = 700; // milliseconds
const forms = new WeakMap(); // by place: the forms that were there
const watched = new WeakSet();

// Put an outcome in the place of the forms. settle(outcome) is called for one that is final; a decision that was taken
// back, or refused while the call still waits, brings the forms back, and complain(text) says why.
export function showOutcome(place, outcome, actions) {
  if (!("pending" in outcome.dataset)) {
    if (outcome.dataset.over) { actions.settle(outcome); return; }
    const text = outcome.textContent.trim();
    if (forms.has(place)) place.replaceChildren(...forms.get(place));
    else if (place.querySelector(".outcome[data-pending]")) { location.reload(); return; }
    forms.delete(place);
    for (const part of place.querySelectorAll("details[open]")) part.open = false;
    for (const form of place.querySelectorAll("form[data-busy]")) delete form.dataset.busy;
    actions.complain(text);
    say(text);
    return;
  }
  const shown = place.querySelector(".outcome[data-pending]");
  if (!shown) forms.set(place, [...place.childNodes]);
  const had = shown?.contains(document.activeElement);
  if (!shown || shown.textContent !== outcome.textContent) {
    place.replaceChildren(outcome);
    if (had) outcome.querySelector("button:not([hidden])")?.focus({ preventScroll: true });
    updateTimes(place);
  }
  watch(place, actions);
}

// Ask what has become of it until there is an answer.
export function watch(place, actions) {
  if (watched.has(place)) return;
  watched.add(place);
  const timer = setInterval(async () => {
    const shown = place.querySelector(".outcome[data-pending]");
    if (!shown || !place.isConnected) { clearInterval(timer); watched.delete(place); return; }
    if (document.hidden || shown.querySelector("form[data-busy]")) return;
    const answer = await fetchPart(actions.url);
    const outcome = answer?.ok && parseHTML(answer.text).querySelector(".outcome");
    if (outcome && place.contains(shown)) showOutcome(place, outcome, actions);
  }, EVERY);
}

// Take a decision back.
export async function takeBack(form, place, actions) {
  if (form.dataset.busy) return;
  form.dataset.busy = "1";
  const answer = await fetchPart(form.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(form)) });
  delete form.dataset.busy;
  const outcome = answer?.ok && parseHTML(answer.text).querySelector(".outcome");
  if (outcome) showOutcome(place, outcome, actions);
  else say(answer ? parseHTML(answer.text).textContent.trim() : "The service does not answer.");
}

// The page of one call.
const banner = document.querySelector(".narrow .banner:has(> .outcome[data-pending])");
if (banner) watch(banner, { url: `${location.pathname}/outcome${location.search || "?hash="}`, settle: () => location.reload(), complain: () => location.reload() });
