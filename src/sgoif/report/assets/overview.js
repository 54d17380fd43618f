// The overview: one sentence, which classes are confused, a map and the classes. Every number leads to its cards.
const MOST_CLASSES = 14; // of the matrix

function showSentence() {
  const number = NUMBERS.filter(isBatchable).length;
  const parts = [DOC.sentence ? `${DOC.sentence} ` : ""];
  if (hasBatches()) {
    const go = make("button", { type: "button", class: "link", onclick: () => (clearFilters(), ([mode, queue] = ["batches", "labels"]), filter(), chooseView("review")) }, `${thousands(number)} of ${counted(COUNT, "card")}`);
    parts.push(go, " can be fixed in batches, with one key for each.");
  } else parts.push(make("button", { type: "button", class: "link", onclick: () => ((queue = "labels"), chooseView("review")) }, counted(COUNT, "card")), " to review.");
  const others = { duplicates: ["copy under two labels", "copies under two labels"], outliers: ["outlier"] };
  for (const [name, nouns] of Object.entries(others)) {
    if (hasQueue(name)) parts.push(" ", make("button", { type: "button", class: "link", onclick: () => chooseQueue(name) }, counted(DOC.queues[name].count, ...nouns)), ".");
  }
  find("sentence").replaceChildren(...parts);
}

// How many cards are labelled as one class and look like another; the classes that take part most.
function countPairs() {
  const [pairs, weight] = [new Map(), new Map()];
  for (let i = 0; i < COUNT; i++) {
    const [given, best] = [CARDS.given[i], bestOf(i)];
    if (best < 0) continue;
    pairs.set(`${given}>${best}`, (pairs.get(`${given}>${best}`) ?? 0) + 1);
    for (const label of [given, best]) weight.set(label, (weight.get(label) ?? 0) + 1);
  }
  const labels = [...weight].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([label]) => label);
  return { pairs, labels: labels.slice(0, MOST_CLASSES).sort((a, b) => a - b), numLabels: labels.length };
}

function showMatrix() {
  const { pairs, labels, numLabels } = countPairs();
  find("matrix-panel").hidden = !labels.length;
  if (!labels.length) return;
  const most = Math.max(...labels.flatMap((given) => labels.map((best) => pairs.get(`${given}>${best}`) ?? 0)), 1);
  const cellOfPair = (given, best) => {
    const number = pairs.get(`${given}>${best}`);
    if (!number) return make("td", { class: given === best ? "own" : false });
    const name = `${number} labelled ${className(given)} look like ${className(best)}`;
    const button = make("button", { type: "button", title: name, "aria-label": name, onclick: () => filterBy({ pair: `${given}>${best}` }) }, thousands(number));
    button.style.setProperty("--strength", `${Math.round(5 + 33 * Math.sqrt(number / most))}%`);
    return make("td", {}, button);
  };
  const names = labels.map((label) => make("th", { scope: "col", title: className(label) }, make("span", {}, make("bdi", {}, className(label)))));
  const lines = labels.map((given) => make("tr", {}, make("th", { scope: "row", title: className(given) }, make("bdi", {}, className(given))), ...labels.map((best) => cellOfPair(given, best))));
  find("matrix").replaceChildren(make("thead", {}, make("tr", {}, make("td", { class: "corner" }, "labelled ↓ looks like →"), ...names)), make("tbody", {}, ...lines));
  find("matrix-note").textContent = numLabels > labels.length ? `The ${labels.length} of ${thousands(numLabels)} classes with the most cards.` : "";
}

function startOverview() {
  showMatrix();
  for (const button of document.querySelectorAll("[data-class]")) button.addEventListener("click", () => filterBy({ class: button.dataset.class }));
  for (const button of document.querySelectorAll("[data-p]")) button.addEventListener("click", () => filterBy({ p: button.dataset.p }));
  find("more-classes")?.addEventListener("click", (event) => {
    document.querySelectorAll("tr.more").forEach((row) => (row.hidden = false));
    event.target.remove();
  });
  startMap();
}
