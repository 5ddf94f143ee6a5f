// The page of a run: what happens is added as it happens. The service renders it; here it is put in its place.
import { fetchPart, parseHTML, updateTimes } from "./console.js";

const run = document.getElementById("run");
const transcript = document.getElementById("transcript");
const state = document.getElementById("live-state");
const find = (key) => transcript.querySelector(`.block[data-key="${CSS.escape(key)}"]`);
const isAtEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 160;
const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

function put({ key, html }) {
  const block = parseHTML(html).firstElementChild;
  if (!block) return;
  const old = find(key);
  if (!old) { transcript.append(block); return; }
  if (old.dataset.hash && old.dataset.hash === block.dataset.hash) return; // its forms are in use
  // What a reader has unfolded stays unfolded.
  const was = old.querySelector(":scope > details");
  const now = block.querySelector(":scope > details");
  if (was && now && was.dataset.touched) { now.open = was.open; now.dataset.touched = "1"; }
  if (old.contains(document.activeElement)) block.dataset.focused = "1";
  old.replaceWith(block);
}

function write({ key, field, text }) {
  const place = find(key)?.querySelector(`[data-field="${field}"]`);
  if (!place) return;
  if (field === "call") place.textContent = text; else place.append(text);
  place.closest("details, p")?.removeAttribute("hidden");
}

transcript.addEventListener("click", (event) => {
  const summary = event.target.closest("summary");
  if (summary) summary.parentElement.dataset.touched = "1";
});

let refreshing = null;
function refreshPanel() {
  clearTimeout(refreshing);
  refreshing = setTimeout(async () => {
    const answer = await fetchPart(run.dataset.panel);
    if (!answer?.ok) return;
    const panel = document.getElementById("panel");
    const fresh = parseHTML(answer.text);
    const focused = panel.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const form = panel.contains(document.activeElement) && document.activeElement.closest("form")?.id;
    for (const part of [...panel.children]) {
      const isUsed = part.querySelector("details[open]") || part.contains(document.activeElement);
      if (!("keep" in part.dataset && isUsed && fresh.getElementById(part.id))) part.remove();
    }
    let place = panel.firstElementChild; // of the parts whose forms are in use, which stay where they are
    for (const part of [...fresh.children]) {
      const kept = panel.querySelector(`:scope > #${part.id}`);
      if (kept) place = kept.nextElementSibling; else panel.insertBefore(part, place);
    }
    if (form && !panel.contains(document.activeElement)) document.getElementById(form)?.querySelector("button:not([hidden])")?.focus({ preventScroll: true });
    if (focused) [...panel.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
    updateTimes(panel);
  }, 400);
}

let after = null;
export function follow() {
  const source = new EventSource(after ? run.dataset.live.replace(/after=\d+/, `after=${after}`) : run.dataset.live);
  delete run.dataset.ended;
  source.onopen = () => { state.textContent = ""; };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      state.textContent = "";
      run.dataset.ended = "1";
      refreshPanel();
      if (!run.dataset.over) setTimeout(checkAgain, 3000);
    } else state.textContent = "The connection was lost. Connecting again…";
  };
  source.onmessage = ({ data, lastEventId }) => {
    after = lastEventId || after;
    const frame = JSON.parse(data);
    const follows = isAtEnd();
    if (frame.blocks) { frame.blocks.forEach(put); document.getElementById("no-events")?.remove(); refreshPanel(); }
    else write(frame);
    updateTimes(transcript);
    if (follows) toEnd();
  };
}

// A stream that ended may have ended with its run, or been refused: a login that is over reloads the page.
async function checkAgain() {
  run.dataset.over = "1";
  await fetchPart(run.dataset.panel);
}

transcript.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-earlier]");
  if (!link || event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  const answer = await fetchPart(link.dataset.earlier);
  if (!answer?.ok) { location.assign(link.href); return; }
  const from = document.documentElement.scrollHeight - scrollY;
  const part = parseHTML(answer.text);
  for (const block of [...part.querySelectorAll(".block")]) if (block.dataset.key && find(block.dataset.key)) block.remove();
  link.closest(".earlier").remove();
  transcript.prepend(part);
  updateTimes(transcript);
  scrollTo({ top: document.documentElement.scrollHeight - from });
});

if (run.dataset.live) {
  follow();
  // On a phone the page begins with what the run is, and where it stands.
  if (!location.hash && document.referrer.indexOf("/inbox/") < 0 && !matchMedia("(max-width: 900px)").matches) toEnd();
}
if (document.querySelector("[data-unanswered]")) refreshPanel();
setInterval(() => { if (!document.hidden && run.dataset.live && !run.dataset.over) refreshPanel(); }, 20000);
