// Puts the page together: progress, files and colours.
const PAIRS = NUMBERS.map(pairOf);

function verdictsSoFar() {
  const verdicts = new Map();
  for (const [i, { decision }] of decided) if (i < COUNT && decision && decision !== "unsure") verdicts.set(i, WRONG.has(decision) ? 1 : 0);
  return verdicts;
}

const HAS_P = CARDS.p.every((p) => p != null);
const recalibrated = () => (HAS_P ? recalibrate(CARDS.p, PAIRS, verdictsSoFar()) : { p: CARDS.p, variance: 0 });

// Open cards in the order in which they come: those of batches first where these are shown, else from the current card.
function comingUp() {
  const isOpen = (i) => !decided.get(i)?.decision;
  if (mode !== "batches") return [...shown.slice(Math.max(current, 0)), ...shown.slice(0, Math.max(current, 0))].filter(isOpen);
  const first = [...batch.cards, ...batchable().flatMap(([, cards]) => cards)];
  return [...new Set([...first, ...shown])].filter(isOpen);
}

function estimate() {
  const verdicts = verdictsSoFar();
  const open = NUMBERS.filter((i) => !decided.get(i)?.decision);
  const reviewed = COUNT - open.length;
  const wrong = [...verdicts.values()].filter((value) => value === 1).length;
  if (!HAS_P) return { reviewed, wrong, open: open.length };
  const { p, variance } = recalibrated();
  const next = comingUp().slice(0, 100);
  const left = leftOver(p, open, variance);
  return { reviewed, wrong, open: open.length, left, next: leftOver(p, next, variance).expected, numNext: next.length };
}

function showProgress() {
  const found = estimate();
  if (DOC.sample) return showChecked(found);
  if (queue !== "labels") return tell(queueProgress());
  const parts = [`Reviewed ${thousands(found.reviewed)} of ${thousands(COUNT)}, found ${thousands(found.wrong)} wrong.`];
  if (found.left && found.open) {
    const about = Math.round(found.left.expected);
    const next = found.numNext ? `; the next ${found.numNext} hold about ${Math.round(found.next)}` : "";
    parts.push(`About ${thousands(about)} ± ${Math.round(1.645 * found.left.deviation)} left${next}.`);
  }
  if (!found.open) parts.push("All cards are decided.");
  if (DOC.beyond?.errors >= 1 && !found.open) parts.push(`About ${thousands(Math.round(DOC.beyond.errors))} more are expected beyond this page.`);
  tell(parts);
}

function showChecked(found) {
  const parts = [`${thousands(found.reviewed)} of ${counted(COUNT, "label")} checked.`];
  if (!found.open) parts.push("Download the verdicts, and pass the file to sgoif verify --verdicts.");
  tell(parts);
}

function tell(parts) {
  find("progress").textContent = parts.join(" ");
  const kept = canKeep ? "Kept in this browser" : "Not kept by this browser";
  find("saved").textContent = decided.size ? `${kept}, ${isUnsaved ? "not downloaded" : "downloaded"}` : "";
  showResult();
}

// The estimate and the batches look at every card, so they wait until the hand rests.
let waiting = 0;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(() => (window.requestIdleCallback ?? setTimeout)(() => (reviseOffers(), showProgress())), 120);
}

function fileName() {
  const whose = DOC.reviewer ? `-${DOC.reviewer.replace(/[^\p{L}\p{N}._-]/gu, "_")}` : "";
  return `${DOC.sample ? "verdicts" : "decisions"}${whose}.csv`;
}

function download() {
  const rows = decisionRows();
  if (!rows.length) return say("Nothing is decided yet.");
  saveFile(fileName(), "text/csv", "\ufeff", toCsv(rows));
  markDownloaded();
  showProgress();
}

async function loadFile(event) {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  say(loadedText(await load(fromCsv(await file.text()))));
  soon();
}

function start() {
  startColours(() => DOC.owner && drawMap());
  restore();
  leastShare = lowestTold = chooseLeastShare(checkedSoFar());
  fillFilters();
  listeners.push((cards) => (redress(cards), soon()));
  addEventListener("storage", (event) => (changedElsewhere(event), PLACE.has(event.key) && showAgain()));
  for (const name of ["pair", "class", "state"]) filterOf(name).addEventListener("change", () => (filterOf(name).blur(), focusCard()));
  for (const name of FILTERS) filterOf(name).addEventListener("input", filter);
  find("sort").addEventListener("change", () => ((current = -1), filter())); // from the start
  find("clear").addEventListener("click", () => (clearFilters(), filter()));
  find("download").addEventListener("click", download);
  find("load").addEventListener("change", loadFile);
  find("choose").addEventListener("click", () => find("load").click());
  find("help").addEventListener("click", openKeys);
  find("copy")?.addEventListener("click", copyCommand);
  find("download-too")?.addEventListener("click", download);
  document.addEventListener("keydown", pressed);
  addEventListener("scroll", () => requestAnimationFrame(() => mode === "cards" && queue === "labels" && view === "review" && paint()), { passive: true });
  let resizing = 0;
  addEventListener("resize", () => (clearTimeout(resizing), (resizing = setTimeout(resized, 100))));
  addEventListener("beforeunload", (event) => isUnsaved && decided.size && event.preventDefault());
  startViews();
  if (DOC.owner) startOverview();
  mode = defaultMode();
  show(wantedCards());
  if (!followAddress()) chooseView(DOC.owner && !DOC.asked ? "overview" : "review");
  showProgress();
  showOffers();
  if (view === "review" && queue === "labels" && mode === "batches") nextBatch(); // the progress takes room
  if (IS_WRITTEN) setTimeout(prepareSearch, 500);
}

// What another tab may have changed.
function showAgain() {
  if (queue !== "labels") showQueue();
  else if (mode === "focus") showFocus();
}

function resized() {
  if (view === "overview") drawMap();
  else if (view !== "review" || queue !== "labels") return;
  else if (mode === "cards") layOut(), paint();
  else if (mode === "batches") refitBatch();
}

start();
window.sgoif = { document: DOC, recalibrate, leftOver, toCsv, fromCsv, decisionRows, decided, estimate, comingUp, chooseLeastShare, leastShare: () => leastShare };
