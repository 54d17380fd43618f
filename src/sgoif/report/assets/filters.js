// Which cards are shown, and in what order.
const FILTERS = ["pair", "class", "p", "confidence", "state", "id"];
let onMap = null; // cards that were chosen on the map
const filterOf = (name) => find(`filter-${name}`);

const isConstant = (values) => values.every((value) => value == null || value === values[0]);

function fillFilters() {
  const option = (value, text) => make("option", { value }, text);
  const all = grouped(NUMBERS);
  filterOf("pair").append(option("", "all"), ...all.map((group) => option(group.key, `${group.name} (${group.cards.length})`)));
  const present = new Set([...CARDS.given.slice(0, COUNT), ...(DOC.blind ? [] : CARDS.suggested.map((labels) => labels[0] ?? -1))]);
  present.delete(-1);
  const named = [...present].sort((a, b) => className(a).localeCompare(className(b)));
  filterOf("class").append(option("", "all"), ...named.map((label) => option(label, className(label))));
  const hasNoP = DOC.blind || CARDS.p.some((p) => p == null);
  find("p-label").hidden = hasNoP || isConstant(CARDS.p);
  find("sort-label").hidden = hasNoP || DOC.sample;
  find("c-label").hidden = isConstant(CARDS.confidence);
  find("pair-label").hidden = DOC.blind;
  find("id-label").hidden = DOC.secret && !IS_WRITTEN;
  if (!IS_WRITTEN) return;
  document.body.classList.add("reading");
  find("id-label").firstChild.textContent = "Find ";
  filterOf("id").placeholder = DOC.secret ? "a word" : "a word or part of an id";
}

function wantedCards() {
  const [pair, label, p, confidence, kind] = ["pair", "class", "p", "confidence", "state"].map((name) => filterOf(name).value);
  const text = plain(filterOf("id").value.trim());
  const isWanted = (i) => {
    const state = decided.get(i)?.decision;
    const states = { all: true, open: !state, done: Boolean(state), wrong: WRONG.has(state), unsure: state === "unsure" };
    return (
      states[kind] &&
      (!onMap || onMap.has(i)) &&
      (!pair || pairOf(i) === pair) &&
      (!label || CARDS.given[i] === Number(label) || (!DOC.blind && bestOf(i) === Number(label))) &&
      (CARDS.p[i] == null || CARDS.p[i] >= p / 100) &&
      (CARDS.confidence[i] == null || CARDS.confidence[i] >= confidence / 100) &&
      (!text || searched(i).includes(text))
    );
  };
  return NUMBERS.filter(isWanted);
}

function filter() {
  find("p-shown").textContent = `${filterOf("p").value}%`;
  find("c-shown").textContent = `${filterOf("confidence").value}%`;
  show(wantedCards());
  find("clear").hidden = shown.length === COUNT;
  soon();
}

function clearFilters() {
  for (const name of ["pair", "class", "id"]) filterOf(name).value = "";
  for (const name of ["p", "confidence"]) filterOf(name).value = 0;
  filterOf("state").value = "all";
  onMap = null;
}

// From a number of the overview to the cards that it counts.
function filterBy(values, cards = null) {
  clearFilters();
  for (const [name, value] of Object.entries(values)) {
    filterOf(name).value = value;
    if (filterOf(name).value !== String(value)) return clearFilters(), say("No card on this page is of this kind.");
  }
  onMap = cards;
  [mode, queue] = ["cards", "labels"];
  filter();
  chooseView("review");
}
