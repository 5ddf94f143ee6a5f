// The page of a bulk action: how far it is, until it is over. Without scripts the page is loaded again by hand.
import { fetchPart, parseHTML, updateTimes } from "./console.js";

const INTERVAL_MS = 1000;
const place = document.getElementById("bulk-progress");

async function refresh() {
  const answer = document.hidden ? null : await fetchPart(place.dataset.part);
  if (answer?.ok && !place.contains(document.activeElement)) {
    place.replaceChildren(...parseHTML(answer.text).children);
    updateTimes(place);
  }
  if (place.firstElementChild.dataset.state === "running") setTimeout(refresh, INTERVAL_MS);
  else document.querySelector(".bulk-stop")?.remove();
}

if (place.firstElementChild.dataset.state === "running" && !location.search.includes("cursor=")) setTimeout(refresh, INTERVAL_MS);
