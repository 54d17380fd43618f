// Puts the page together: filters, progress, files, tabs and colours.
function fillFilters() {
  const option = (value, text) => make("option", { value }, text);
  const all = grouped(CARDS.id.map((_, i) => i));
  find("filter-pair").append(option("", "all"), ...all.map((group) => option(group.key, `${group.name} (${group.cards.length})`)));
  const present = new Set([...CARDS.given, ...(DOC.blind ? [] : CARDS.suggested.map((labels) => labels[0] ?? -1))]);
  present.delete(-1);
  const named = [...present].sort((a, b) => className(a).localeCompare(className(b)));
  find("filter-class").append(option("", "all"), ...named.map((label) => option(label, className(label))));
  find("p-label").hidden = DOC.blind || CARDS.p.every((p) => p == null);
  find("pair-label").hidden = DOC.blind;
  find("id-label").hidden = DOC.secret && !IS_WRITTEN;
  if (!IS_WRITTEN) return;
  document.body.classList.add("reading");
  find("id-label").firstChild.textContent = "Find ";
  find("filter-id").placeholder = DOC.secret ? "a word" : "a word or part of an id";
}

function matches(i, wantedText) {
  const value = (name) => find(`filter-${name}`).value;
  const state = decided.get(i)?.decision;
  const wanted = { all: true, open: !state, done: Boolean(state), wrong: WRONG.has(state), unsure: state === "unsure" };
  const label = value("class");
  return (
    wanted[value("state")] &&
    (!value("pair") || pairOf(i) === value("pair")) &&
    (!label || CARDS.given[i] === Number(label) || (!DOC.blind && bestOf(i) === Number(label))) &&
    (CARDS.p[i] == null || CARDS.p[i] >= value("p") / 100) &&
    (CARDS.confidence[i] == null || CARDS.confidence[i] >= value("confidence") / 100) &&
    (!wantedText || searched(i).includes(wantedText))
  );
}

function filter() {
  find("p-shown").textContent = `${find("filter-p").value}%`;
  find("c-shown").textContent = `${find("filter-confidence").value}%`;
  const wantedText = plain(find("filter-id").value.trim());
  show(CARDS.id.map((_, i) => i).filter((i) => matches(i, wantedText)));
  showActions();
}

const PAIRS = CARDS.id.map((_, i) => pairOf(i));

function estimate() {
  const verdicts = new Map();
  let reviewed = 0;
  for (const [i, value] of decided) {
    if (!value.decision) continue;
    reviewed++;
    if (value.decision !== "unsure") verdicts.set(i, WRONG.has(value.decision) ? 1 : 0);
  }
  const open = CARDS.id.map((_, i) => i).filter((i) => !decided.get(i)?.decision);
  const wrong = [...verdicts.values()].filter((value) => value === 1).length;
  if (CARDS.p.some((p) => p == null)) return { reviewed, wrong, open: open.length };
  const { p, variance } = recalibrate(CARDS.p, PAIRS, verdicts);
  const next = [...open].sort((a, b) => p[b] - p[a]).slice(0, 100);
  const left = leftOver(p, open, variance);
  return { reviewed, wrong, open: open.length, left, next: leftOver(p, next, variance).expected, numNext: next.length };
}

function showProgress() {
  const found = estimate();
  if (DOC.sample) return showChecked(found);
  const parts = [`Reviewed ${thousands(found.reviewed)} of ${thousands(COUNT)}, found ${thousands(found.wrong)} wrong.`];
  if (found.left && found.open) {
    const about = Math.round(found.left.expected);
    parts.push(`About ${thousands(about)} ± ${Math.round(1.645 * found.left.deviation)} left here; the next ${found.numNext} hold about ${Math.round(found.next)}.`);
  }
  if (!found.open) parts.push("All cards are decided.");
  if (DOC.beyond.errors >= 1 && !found.open) parts.push(`About ${thousands(Math.round(DOC.beyond.errors))} more are expected beyond this page.`);
  tell(parts, found);
}

function showChecked(found) {
  const parts = [`${thousands(found.reviewed)} of ${counted(COUNT, "label")} checked.`];
  if (!found.open) parts.push("Download the verdicts, and pass the file to sgoif verify --verdicts.");
  tell(parts, found);
}

function tell(parts, found) {
  find("progress").textContent = parts.join(" ");
  const kept = canKeep ? "Kept in this browser" : "Not kept by this browser";
  find("saved").textContent = found.reviewed ? `${kept}, ${isUnsaved ? "not downloaded" : "downloaded"}` : "";
}

// The estimate looks at every card, so it waits until the hand rests.
let waiting = 0;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(() => (window.requestIdleCallback ?? setTimeout)(showProgress), 120);
}

function download() {
  const rows = decisionRows();
  if (!rows.length) return say("Nothing is decided yet.");
  const address = URL.createObjectURL(new Blob(["\ufeff", toCsv(rows)], { type: "text/csv" }));
  const name = `${DOC.sample ? "verdicts" : "decisions"}${DOC.reviewer ? `-${DOC.reviewer.replace(/[^\p{L}\p{N}._-]/gu, "_")}` : ""}.csv`;
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  markDownloaded();
  showProgress();
}

async function loadFile(event) {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  say(loadedText(load(await file.text())));
  soon();
}

function chooseTab(name) {
  for (const part of ["findings", "health"]) {
    find(part).hidden = part !== name;
    find(`tab-${part}`).setAttribute("aria-selected", part === name);
    find(`tab-${part}`).tabIndex = part === name ? 0 : -1;
  }
  find("actions").hidden = name !== "findings" || !COUNT;
  if (name === "findings") layOut();
}

const THEME = "sgoif/theme";

function colour(theme) {
  document.documentElement.dataset.theme = theme;
  find("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function chosenTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => colour(chosenTheme() ?? (dark.matches ? "dark" : "light"));
  follow();
  dark.addEventListener("change", follow);
  find("theme").addEventListener("click", () => {
    keep(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    colour(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
  if (innerWidth < 720) document.querySelectorAll("details.filters, details.figures-panel").forEach((part) => (part.open = false));
  restore();
  fillFilters();
  listeners.push((cards) => (redress(cards), soon()));
  addEventListener("storage", changedElsewhere);
  for (const name of ["pair", "class", "state"]) find(`filter-${name}`).addEventListener("change", () => focusCard());
  for (const name of ["pair", "class", "p", "confidence", "state", "id"]) find(`filter-${name}`).addEventListener("input", filter);
  find("clear").addEventListener("click", () => {
    for (const name of ["pair", "class", "id"]) find(`filter-${name}`).value = "";
    for (const name of ["p", "confidence"]) find(`filter-${name}`).value = 0;
    find("filter-state").value = "all";
    filter();
  });
  for (const part of ["findings", "health"]) find(`tab-${part}`).addEventListener("click", () => chooseTab(part));
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const other = find("findings").hidden ? "findings" : "health";
    chooseTab(other);
    find(`tab-${other}`).focus();
    event.stopPropagation();
  });
  for (const button of document.querySelectorAll("[data-class]"))
    button.addEventListener("click", () => {
      const select = find("filter-class");
      select.value = button.dataset.class;
      if (select.value !== button.dataset.class) return say("No card on this page is of this class.");
      filter();
      find("review").scrollIntoView();
    });
  find("more-classes")?.addEventListener("click", (event) => {
    document.querySelectorAll("tr.more").forEach((row) => (row.hidden = false));
    event.target.remove();
  });
  find("download").addEventListener("click", download);
  find("load").addEventListener("change", loadFile);
  find("choose").addEventListener("click", () => find("load").click());
  find("help").addEventListener("click", openKeys);
  document.addEventListener("keydown", pressed);
  addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
  let resizing = 0;
  addEventListener("resize", () => (clearTimeout(resizing), (resizing = setTimeout(layOut, 100))));
  addEventListener("beforeunload", (event) => isUnsaved && decided.size && event.preventDefault());
  filter();
  showProgress();
  find("actions").hidden = !COUNT;
  if (IS_WRITTEN) setTimeout(prepareSearch, 500);
}

start();
window.sgoif = { document: DOC, recalibrate, leftOver, toCsv, fromCsv, decisionRows, decided, estimate };
