// Views and ways to review: Overview, Review (batches, focus, all cards), Result. The address names them.
const VIEWS = ["overview", "review", "result"];
const MODES = ["batches", "focus", "cards"];
let view = DOC.owner ? "overview" : "review";

const hasMode = (name) => name !== "batches" || mode === "batches" || hasBatches();

function defaultMode() {
  return hasBatches() ? "batches" : DOC.sample || DOC.asked || !DOC.examples.length ? "cards" : "focus";
}

function rememberPlace() {
  const name = view !== "review" ? view : queue === "labels" ? mode : queue;
  if (location.hash !== `#${name}`) window.history.replaceState(null, "", `#${name}`);
}

function chooseView(name) {
  view = DOC.owner ? name : "review";
  document.body.dataset.view = view;
  for (const part of VIEWS) {
    if (!find(part)) continue;
    find(part).hidden = part !== view;
    const tab = find(`tab-${part}`);
    tab?.setAttribute("aria-selected", part === view);
    if (tab) tab.tabIndex = part === view ? 0 : -1;
  }
  if (view === "review") showMode();
  else {
    find("actions").hidden = true;
    scrollTo(0, 0);
    if (view === "overview") showSentence(), drawMap();
    else showResult();
  }
  rememberPlace();
}

// Focus mode begins at an open card, where there is one; a card that was chosen stays.
function chooseMode(name, isChosen = false) {
  if (!hasMode(name)) return say("There are no batches on this page.");
  const isOpen = (i) => !decided.get(i)?.decision;
  if (name === "focus" && !isChosen && current >= 0 && !isOpen(shown[current])) current = Math.max(shown.findIndex(isOpen), 0);
  [mode, queue] = [name, "labels"];
  if (view !== "review") return chooseView("review");
  showMode();
  rememberPlace();
}

function showModeButtons() {
  for (const name of MODES) {
    find(`mode-${name}`).setAttribute("aria-pressed", name === mode);
    find(`mode-${name}`).hidden = !hasMode(name);
  }
}

function showMode() {
  if (view !== "review") return;
  document.body.dataset.mode = mode;
  showModeButtons();
  showQueueButtons();
  const [isQueue, isEmpty] = [queue !== "labels", !shown.length];
  find("queue").hidden = !isQueue;
  find("batches").hidden = isQueue || mode !== "batches" || isEmpty;
  find("opened").hidden = isQueue || mode !== "focus" || isEmpty;
  find("grid").hidden = isQueue || mode !== "cards";
  find("actions").hidden = isQueue || mode !== "cards" || isEmpty;
  find("nothing").hidden = isQueue || !isEmpty;
  if (isQueue) scrollTo(0, 0), showQueue();
  else if (mode === "cards") layOut(), shown.length ? goTo(current) : showActions();
  else {
    scrollTo(0, 0);
    if (mode === "batches") nextBatch();
    else showFocus();
  }
  soon();
}

// Shows what the address names, if it names anything here.
function followAddress() {
  const name = location.hash.slice(1);
  const isMode = MODES.includes(name) && hasMode(name);
  const isQueue = QUEUES.includes(name) && hasQueue(name);
  if (isMode) [mode, queue] = [name, "labels"];
  else if (isQueue) queue = name;
  if (isMode || isQueue) chooseView("review");
  else if (VIEWS.includes(name)) chooseView(name);
  else return false;
  return true;
}

function startViews() {
  const tabs = VIEWS.map((name) => find(`tab-${name}`)).filter(Boolean);
  for (const tab of tabs) {
    tab.addEventListener("click", () => chooseView(tab.dataset.view));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
      chooseView(next.dataset.view);
      next.focus();
      event.preventDefault();
      event.stopPropagation();
    });
  }
  for (const name of MODES) find(`mode-${name}`).addEventListener("click", () => chooseMode(name));
  addEventListener("hashchange", followAddress);
}
