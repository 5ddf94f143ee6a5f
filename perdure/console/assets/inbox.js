// The inbox: keys, decisions in place, and what others decide meanwhile. Without it the forms work by themselves.
import { fetchPart, parseHTML, say, updateTimes } from "./console.js";
import { showOutcome, takeBack, watch } from "./decisions.js";
import { declareKeys, openPart } from "./keys.js";

const list = document.getElementById("rows");
const rows = () => [...list.querySelectorAll(".row")];
const open = () => rows().filter((row) => !row.classList.contains("decided"));
const bulk = document.getElementById("bulk");
const base = document.title.replace(/^\([^)]*\) /, "");
let current = null; // none at first: a stray key decides nothing
let waiting = null; // in all runs, as far as it is known here
if (/^\d+$/.test(document.querySelector("[data-count]")?.textContent ?? "")) waiting = Number(document.querySelector("[data-count]").textContent);

function select(row, focus = true) {
  if (!row) return;
  current?.classList.remove("current");
  current = row;
  row.classList.add("current");
  if (focus) { row.focus({ preventScroll: true }); row.scrollIntoView({ block: "nearest" }); }
}

function move(step) {
  const all = rows();
  const at = all.indexOf(current);
  select(all[Math.min(Math.max(at + step, 0), all.length - 1)] ?? all[0]);
}

function selectNext(row) {
  const all = rows();
  const later = [...all.slice(all.indexOf(row) + 1), ...all].find((other) => !other.querySelector(".outcome"));
  select(later ?? row);
}

// What became of a row takes the place of its buttons; the row itself stays.
function settle(row, outcome) {
  const slot = row.querySelector(".actions");
  slot.replaceChildren(outcome);
  row.classList.add("decided");
  const tick = row.querySelector("input[name=item]");
  if (tick) { tick.checked = false; tick.disabled = true; }
  countTicked();
  if (waiting != null) waiting = Math.max(waiting - 1, 0);
  showCount();
}

function place(html) {
  const placed = [];
  for (const outcome of [...parseHTML(html).querySelectorAll(".outcome")]) {
    const row = document.getElementById(`row-${outcome.dataset.for}`);
    if (!row) continue;
    placed.push(outcome.textContent.trim());
    showOutcome(row.querySelector(".actions"), outcome, getActions(row));
  }
  updateTimes(list);
  return placed;
}

// What is done with the answer of a decision on a row.
function getActions(row) {
  return { url: row.dataset.outcome, settle: (outcome) => settle(row, outcome), complain: (text) => complain(row, text) };
}

function complain(row, text) {
  row.querySelector(".problem")?.remove();
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.textContent = text;
  row.querySelector(".actions").append(problem);
}

function showCount() {
  const number = waiting ?? open().length;
  if (waiting != null) for (const badge of document.querySelectorAll("[data-count]")) badge.textContent = String(waiting);
  for (const place of document.querySelectorAll("[data-matching]")) place.textContent = String(open().length);
  document.title = number ? `(${number}) ${base}` : base;
}

async function send(form, submitter) {
  const body = new URLSearchParams(new FormData(form, submitter));
  return fetchPart(form.getAttribute("action"), { method: "POST", body });
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches("[data-undo]") && form.closest(".row")) {
    event.preventDefault();
    const row = form.closest(".row");
    await takeBack(form, row.querySelector(".actions"), getActions(row));
    return;
  }
  if (!form.matches("[data-decide], #bulk")) return;
  event.preventDefault();
  const isBulk = form === bulk;
  const row = form.closest(".row");
  const button = event.submitter;
  if (form.dataset.busy) return;
  if (isBulk && !confirmBulk(button)) return;
  form.dataset.busy = "1";
  const next = !isBulk && row === current;
  const answer = await send(form, button);
  delete form.dataset.busy;
  if (!answer) { say("Nothing was sent: the service does not answer."); if (row) complain(row, "The service does not answer. Nothing was decided that you see here; try again."); return; }
  if (!answer.ok) {
    const text = parseHTML(answer.text).textContent.trim();
    say(text);
    if (row) complain(row, text); else alertBulk(text);
    return;
  }
  const placed = place(answer.text);
  say(placed.length === 1 ? placed[0] : `${placed.length} results`);
  if (next) selectNext(row);
});

// Exactly the rows that are ticked and unfolded are sent.
function confirmBulk(button) {
  const ticked = [...list.querySelectorAll("input[name=item]:checked")];
  if (!ticked.length) return false;
  const folded = ticked.filter((tick) => !isUnfolded(tick.closest(".row")));
  if (folded.length) { folded.forEach((tick) => unfold(tick.closest(".row"))); alertBulk("Unfolded what was ticked. Read it, and press again."); return false; }
  if (button?.value === "deny" && !bulk.elements.comment.value.trim()) {
    alertBulk("To deny, give a reason: the agents get it.");
    bulk.elements.comment.focus();
    return false;
  }
  if (!button.dataset.sure) {
    button.dataset.sure = "1";
    button.dataset.text = button.textContent;
    button.textContent = `${button.value === "deny" ? "Deny" : "Approve"} these ${ticked.length}: sure?`;
    setTimeout(() => unsure(button), 6000);
    return false;
  }
  unsure(button);
  return true;
}
function unsure(button) {
  if (!button.dataset.sure) return;
  delete button.dataset.sure;
  button.textContent = button.dataset.text;
}
function alertBulk(text) {
  const label = document.getElementById("ticked");
  label.textContent = text;
  say(text);
}
function countTicked() {
  const label = document.getElementById("ticked");
  if (!label) return;
  const count = list.querySelectorAll("input[name=item]:checked").length;
  label.textContent = count ? `${count} ticked` : list.querySelector("input[name=item]") ? "Tick calls to decide them together" : "";
}
// A row is unfolded before it is acted on: nothing is decided, alone or with others, that was not shown. A row whose form
// is open, or that is ticked, is unfolded by the stylesheet.
const isUnfolded = (row) => row.querySelector(".row-body")?.checkVisibility() ?? false;
function unfold(row) {
  row.querySelector(".row-more").open = true;
}
list.addEventListener("change", (event) => {
  if (event.target.name !== "item") return;
  if (event.target.checked) unfold(event.target.closest(".row"));
  bulk.querySelectorAll("button").forEach(unsure);
  countTicked();
});
list.addEventListener("toggle", (event) => {
  if (!event.target.matches(".row-more") || event.target.open) return;
  const row = event.target.closest(".row");
  const tick = row.querySelector("input[name=item]");
  if (tick?.checked) { tick.checked = false; countTicked(); }
  row.querySelector(":scope > .context")?.remove();
}, true);
list.addEventListener("focusin", (event) => {
  const row = event.target.closest(".row");
  if (row && row !== current) select(row, false);
});

// Opens a form of the row; its button decides.
function openForm(name) {
  if (!current || current.classList.contains("decided")) return;
  unfold(current);
  openPart(current.querySelector(`.${name}-pop`));
}
function toggle(row) {
  if (row) row.querySelector(".row-more").open = !row.querySelector(".row-more").open;
}
function showContext(row) {
  if (!row) return;
  unfold(row);
  row.querySelector("a[data-context]")?.click();
}
if (rows().length) declareKeys({
  j: { run: () => move(1), repeats: true },
  k: { run: () => move(-1), repeats: true },
  v: () => toggle(current),
  a: () => openForm(current?.querySelector(".answer-pop") ? "answer" : "approve"),
  d: () => openForm("deny"),
  e: () => current?.querySelector("a[data-key=e]")?.click(),
  x: () => current?.querySelector("input[name=item]:not(:disabled)")?.click(),
  c: () => showContext(current),
  o: () => current?.querySelector("a[data-open]")?.click(),
  "?": () => { const keys = document.querySelector("details.keys"); keys.open = !keys.open; },
});

// What led to a call, in its row; again to fold it.
list.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-context]");
  if (!link || event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  const row = link.closest(".row");
  const shown = row.querySelector(":scope > .context");
  if (shown) { shown.remove(); return; }
  const answer = await fetchPart(link.dataset.context);
  if (!answer?.ok) { location.assign(link.href); return; }
  const context = parseHTML(answer.text).querySelector(".context");
  for (const block of context.querySelectorAll("[id]")) block.removeAttribute("id");
  row.append(context);
  updateTimes(row);
});

for (const row of rows()) if (row.querySelector(".outcome[data-pending]")) watch(row.querySelector(".actions"), getActions(row));

// What others decide, and what is new. Rows stay where they are: new ones come when the reader asks for them.
const known = new Set(rows().map((row) => row.dataset.key));
async function poll() {
  if (document.hidden) return;
  const answer = await fetchPart(list.dataset.changes);
  if (!answer?.ok) return;
  const { keys, is_whole: isWhole, count } = JSON.parse(answer.text);
  const still = new Set(keys);
  if (!("static" in list.dataset)) {
    const fresh = keys.filter((key) => !known.has(key)).length;
    const news = document.getElementById("news");
    const more = document.querySelector(".pager") !== null;
    news.hidden = !fresh || more;
    news.querySelector("a").textContent = `${fresh} new ${fresh === 1 ? "call waits" : "calls wait"}: show`;
    if (!rows().length && fresh) location.reload();
  }
  for (const row of isWhole && !("static" in list.dataset) ? open() : []) {
    if (still.has(row.dataset.key) || row.querySelector("[data-busy], .outcome[data-pending]")) continue;
    const gone = await fetchPart(row.dataset.outcome);
    if (gone?.ok && !row.classList.contains("decided")) {
      const outcome = parseHTML(gone.text).querySelector(".outcome");
      if (outcome?.dataset.over) { outcome.dataset.for = row.dataset.key; settle(row, outcome); }
    }
  }
  if (count != null) waiting = count;
  showCount();
}
setInterval(poll, 3000);
document.addEventListener("visibilitychange", poll);
