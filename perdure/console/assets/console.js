// What every page does: keys, times that go on, and what is said to screen readers.
import "./keys.js";

const SOON = 600; // seconds; a deadline that is nearer stands out
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function describeSeconds(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  for (let i = 0; i < UNITS.length - 1; i++) {
    const [size, unit] = UNITS[i];
    if (whole >= size) {
      const rest = Math.floor((whole % size) / UNITS[i + 1][0]);
      return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${UNITS[i + 1][1]}` : ""}`;
    }
  }
  return `${whole} s`;
}

export function updateTimes(root = document) {
  for (const time of root.querySelectorAll("time[data-style]")) {
    const at = new Date(time.dateTime);
    const past = (Date.now() - at) / 1000;
    let text;
    if (time.dataset.style === "clock") {
      const isDated = at.toDateString() !== new Date().toDateString();
      const day = isDated ? `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ` : "";
      text = day + at.toLocaleTimeString([], { hour12: false });
      time.classList.toggle("dated", isDated);
    }
    else if (time.dataset.style === "date") text = `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" })} ${at.toLocaleTimeString([], { hour12: false })}`;
    else if (time.dataset.style === "for") text = describeSeconds(Math.max(past, 1));
    else if (past >= 0) text = past < 5 ? "just now" : `${describeSeconds(past)} ago`;
    else text = `in ${describeSeconds(time.dataset.style === "until" && past <= -SOON ? Math.floor(-past / 60) * 60 : -past)}`;
    if (time.dataset.style === "until") time.classList.toggle("soon", past > -SOON);
    if (time.textContent !== text) time.textContent = text;
  }
}

export function say(text) {
  document.getElementById("said").textContent = text;
}

// Fetch a part of a page. A login that has ended leads to the login page; null if nothing can be had now.
export async function fetchPart(url, options = {}) {
  try {
    const response = await fetch(url, { ...options, headers: { "X-Perdure-Fragment": "1", ...options.headers } });
    if (response.status === 401) { location.reload(); return null; }
    return { ok: response.ok, status: response.status, text: await response.text() };
  } catch { return null; }
}

export function parseHTML(text) {
  const template = document.createElement("template");
  template.innerHTML = text;
  return template.content;
}

updateTimes();
setInterval(updateTimes, 1000);
// How many runs are ticked is said beside what is done with them.
const ticked = document.querySelector(".runs-bulk .when-ticked");
function countTicked() {
  const count = document.querySelectorAll("input[name=item]:checked").length;
  ticked.textContent = `With ${count} ticked ${count === 1 ? "run" : "runs"}`;
}
if (ticked) {
  document.addEventListener("change", countTicked);
  window.addEventListener("pageshow", countTicked); // a browser that goes back ticks what was ticked
}
// Edits of arguments that are not sent yet hide what would decide on the call without them.
document.addEventListener("input", (event) => event.target.closest(".change")?.setAttribute("data-edited", ""));
// A button that was pressed is not pressed twice.
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented) return;
  if (event.target.dataset.sent) { event.preventDefault(); return; }
  event.target.dataset.sent = "1";
  setTimeout(() => delete event.target.dataset.sent, 5000);
});
addEventListener("pageshow", () => document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent));
