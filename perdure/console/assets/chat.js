// The chat: the composer, the forms of calls that wait, and what is told to screen readers. The transcript is run.js.
import { fetchPart, parseHTML, say, updateTimes } from "./console.js";
import { showOutcome, takeBack, watch } from "./decisions.js";
import { declareKeys, focusFirst } from "./keys.js";

const composer = document.getElementById("composer");
const text = document.getElementById("text");
const transcript = document.getElementById("transcript");
const live = transcript && (await import("./run.js"));

// ---- the composer

function complain(message) {
  const problem = document.getElementById("problem");
  problem.hidden = !message;
  problem.textContent = message ?? "";
}

if (composer) {
  const files = document.getElementById("files");
  const chosen = document.getElementById("chosen");

  const setFiles = (list) => {
    const transfer = new DataTransfer();
    list.slice(0, Number(files.dataset.most)).forEach((file) => transfer.items.add(file));
    complain(list.length > Number(files.dataset.most) ? `A message takes ${files.dataset.most} files.` : null);
    files.files = transfer.files;
    showFiles();
  };
  const describeSize = (size) => (size >= 1 << 20 ? `${(size / (1 << 20)).toFixed(1)} MB` : size >= 1024 ? `${(size / 1024).toFixed(1)} kB` : `${size} bytes`);
  function showFiles() {
    const list = [...files.files];
    chosen.hidden = !list.length;
    chosen.replaceChildren(...list.map((file, index) => {
      const item = document.createElement("li");
      const size = document.createElement("span");
      const remove = document.createElement("button");
      item.textContent = `${file.name} `;
      size.textContent = describeSize(file.size);
      size.className = "muted";
      remove.type = "button";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      remove.addEventListener("click", () => { setFiles(list.filter((_, other) => other !== index)); text.focus(); });
      item.append(size, remove);
      return item;
    }));
  }
  files.addEventListener("change", () => { setFiles([...files.files]); text.focus(); });
  text.addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files];
    if (pasted.length) { event.preventDefault(); setFiles([...files.files, ...pasted]); }
  });
  composer.addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
  composer.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    setFiles([...files.files, ...event.dataTransfer.files]);
  });

  composer.addEventListener("submit", (event) => {
    const isInput = event.submitter?.value === "input";
    if (!isInput && !text.value.trim() && !files.files.length) { event.preventDefault(); text.focus(); return; }
    const size = [...files.files].reduce((sum, file) => sum + file.size, 0);
    if (size > Number(files.dataset.bytes) - 65536) {
      event.preventDefault();
      complain(`The files have ${describeSize(size)}; a message takes ${describeSize(Number(files.dataset.bytes))}.`);
      return;
    }
    if (!live) return;
    event.preventDefault();
    sendMessage(event.submitter, isInput);
  });

  async function sendMessage(button, isInput) {
    if (composer.dataset.busy) return;
    composer.dataset.busy = "1";
    complain(null);
    const body = new FormData(composer, button);
    const ghost = showSending(isInput ? "Input" : text.value, [...files.files]);
    const kept = text.value;
    if (!isInput) text.value = "";
    const answer = await fetchPart(composer.getAttribute("action"), { method: "POST", body });
    delete composer.dataset.busy;
    if (!answer?.ok) {
      ghost.remove();
      if (!isInput && !text.value) text.value = kept;
      complain(answer ? parseHTML(answer.text).textContent.trim() : "The service does not answer. Send it again: it counts once.");
      text.focus();
      return;
    }
    ghost.classList.add("sent");
    if (!isInput) setFiles([]);
    composer.elements.nonce.value = makeNonce();
    showState(answer.text);
    if (run.dataset.ended) live.follow();
    text.focus();
  }
}

const run = document.getElementById("run");
const makeNonce = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// A message is shown at once, and replaced by the one that the session has recorded.
function showSending(message, files) {
  const ghost = document.createElement("article");
  ghost.className = "block message sending";
  const body = document.createElement("div");
  body.className = "body";
  body.textContent = [message, ...files.map((file) => file.name)].filter(Boolean).join("\n");
  ghost.append(body);
  transcript.append(ghost);
  scrollTo({ top: document.documentElement.scrollHeight });
  return ghost;
}

function showState(html) {
  document.getElementById("panel").replaceChildren(...parseHTML(html).childNodes);
  updateTimes(document.getElementById("panel"));
}

// ---- calls that wait

// What is done with the answer of a decision on a block.
function getActions(block) {
  return { url: block.dataset.outcome, settle: (outcome) => settle(block, outcome), complain: (text) => complainIn(block, text) };
}

function complainIn(block, text) {
  block.querySelector(".problem")?.remove();
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.textContent = text;
  block.querySelector(".wait-actions").append(problem);
}

function settle(block, outcome) {
  const had = block.contains(document.activeElement);
  block.querySelector(".wait-actions").replaceChildren(outcome);
  block.classList.add("settled");
  updateTimes(block);
  if (had) text?.focus();
}

transcript?.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches("form[data-undo]")) {
    event.preventDefault();
    const block = form.closest(".block");
    await takeBack(form, block.querySelector(".wait-actions"), getActions(block));
    return;
  }
  if (!form.matches("form[data-call]")) return;
  event.preventDefault();
  if (form.dataset.busy) return;
  form.dataset.busy = "1";
  const block = form.closest(".block");
  const body = new URLSearchParams(new FormData(form, event.submitter));
  const answer = await fetchPart(form.getAttribute("action"), { method: "POST", body });
  delete form.dataset.busy;
  const part = answer && parseHTML(answer.text);
  if (answer?.ok && part.querySelector(".outcome")) {
    const outcome = part.querySelector(".outcome");
    say(outcome.textContent.trim());
    showOutcome(block.querySelector(".wait-actions"), outcome, getActions(block));
  } else if (answer?.ok && part.querySelector(".review")) {
    form.hidden = true;
    form.after(part.querySelector(".review"));
    focusFirst(form.nextElementSibling);
    form.closest(".pop").scrollIntoView({ block: "nearest" });
  } else {
    complainIn(block, part ? part.textContent.trim() : "The service does not answer. Nothing was decided; try again.");
  }
});
transcript?.addEventListener("click", (event) => {
  if (!event.target.matches("[data-back]")) return;
  const review = event.target.closest(".review");
  const form = review.previousElementSibling;
  form.hidden = false;
  review.remove();
  focusFirst(form);
});
// What others have decided: the session says what still waits.
async function settleDecided() {
  const state = document.getElementById("chat-state");
  if (!state || !("pending" in state.dataset)) return;
  const pending = new Set(state.dataset.pending.trim().split(" "));
  for (const block of transcript.querySelectorAll(".block.wait:not(.settled)")) {
    if (pending.has(block.dataset.hash) || block.querySelector("[data-busy], .outcome[data-pending]")) continue;
    const answer = await fetchPart(block.dataset.outcome);
    const outcome = answer?.ok && parseHTML(answer.text).querySelector(".outcome");
    if (outcome?.dataset.over && block.isConnected && !block.classList.contains("settled")) settle(block, outcome);
  }
}

for (const place of transcript?.querySelectorAll(".wait-actions:has(> .outcome[data-pending])") ?? []) watch(place, getActions(place.closest(".block")));
if (transcript) {
  new MutationObserver(settleDecided).observe(document.getElementById("panel"), { childList: true });
  new MutationObserver((records) => {
    for (const block of records.flatMap((record) => [...record.addedNodes])) {
      if (!(block instanceof HTMLElement) || !block.matches(".block")) continue;
      if (block.matches(".message[data-key]")) transcript.querySelector(".sending")?.remove();
      if (block.dataset.focused) text?.focus();
      if (block.matches(".reply.done:not(.bare)")) say(block.querySelector(".body")?.textContent.trim().slice(0, 500) ?? "");
      if (block.matches(".wait")) say(block.querySelector("h2").textContent.trim());
    }
    // What is being sent stays last.
    const ghost = transcript.querySelector(".sending");
    if (ghost && ghost !== transcript.lastElementChild) transcript.append(ghost);
  }).observe(transcript, { childList: true });
}

// Esc leads to the button that stops the turn; the button stops it. While a call waits for a decision, that denies the
// call: then only a pointer or the Tab key leads there.
declareKeys({ Escape: () => document.querySelector("#chat-state[data-state=running]") && document.querySelector("#stop button:not([hidden])")?.focus() });
document.addEventListener("click", (event) => {
  const options = document.querySelector("details.options[open]");
  if (options && !options.contains(event.target)) options.open = false;
});
document.addEventListener("submit", async (event) => {
  if (event.target.id !== "stop" || !live) return;
  event.preventDefault();
  const button = event.submitter;
  const body = new URLSearchParams(new FormData(event.target, button));
  button.disabled = true;
  const answer = await fetchPart(event.target.getAttribute("action"), { method: "POST", body });
  if (answer?.ok) { showState(answer.text); say("Stopped"); }
  else { button.disabled = false; complain(answer ? parseHTML(answer.text).textContent.trim() : "The service does not answer."); }
  text?.focus();
});
text?.focus({ preventScroll: true });
