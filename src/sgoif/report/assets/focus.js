// Focus mode: one card at a time, the example large, its neighbours with their labels, and the classes on keys.
function strip(title, items, i, isOneClass = false) {
  if (!items?.length) return null;
  const kinds = items.map(([number]) => exampleAt(number));
  if (kinds.some(isRow)) return compared(title, items, i);
  if (kinds.some(isText)) return quoted(title, items, isOneClass);
  const figures = items.map(([number, label, id]) => {
    const name = className(label);
    const frame = make("div", { class: "picture", title: id }, picture(number, id || name, id ? `${name}: ${id}` : name));
    return make("figure", {}, frame, make("figcaption", { title: name }, make("bdi", {}, name)));
  });
  return make("section", { class: "beside" }, make("h3", {}, title), make("div", { class: "strip" }, ...figures));
}

function quoted(title, items, isOneClass) {
  const lines = items.map(([number, label, id]) => {
    const example = exampleAt(number);
    const text = isText(example) ? written(example.text, ON_CARD) : picture(number, id || className(label), className(label));
    return make("li", { title: id }, isOneClass ? null : make("bdi", { class: "whose" }, className(label)), text);
  });
  return make("section", { class: "beside" }, make("h3", {}, title), make("ul", { class: "quotes" }, ...lines));
}

// Rows beside a card, in the columns in which the card is most unusual.
function compared(title, items, i) {
  const own = exampleAt(CARDS.example[i]);
  const chosen = (isRow(own) ? own : items.map(([number]) => exampleAt(number)).find(isRow)).order.slice(0, BESIDE);
  const head = make("tr", {}, make("th", { scope: "col" }, "label"), ...chosen.map((c) => make("th", { scope: "col", title: DOC.columns[c] }, make("bdi", {}, DOC.columns[c]))));
  const line = (name, example, id, kind) =>
    make("tr", { title: id, class: kind }, make("th", { scope: "row" }, make("bdi", {}, name)), ...chosen.map((c) => (isRow(example) ? cellOf(example.row[c]) : make("td", {}, "?"))));
  const lines = items.map(([number, label, id]) => line(className(label), exampleAt(number), id, false));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...(isRow(own) ? [line("this card", own, "", "own-row")] : []), ...lines));
  return make("section", { class: "beside" }, make("h3", {}, title), make("div", { class: "scroll compared", tabindex: "0", role: "region", "aria-label": title }, table));
}

function overEpochs(points) {
  if (!points?.length) return null;
  const [w, h] = [300, 64];
  const last = points[points.length - 1][0];
  const first = points[0][0];
  const x = (epoch) => (w * (epoch - first)) / Math.max(last - first, 1);
  const line = points.map(([epoch, belief]) => `${x(epoch).toFixed(1)},${(h - 4 - (h - 8) * belief).toFixed(1)}`).join(" ");
  const title = `belief in the given label by epoch: ${points.map(([, belief]) => percent(belief)).join(", ")}`;
  const svg = draw("svg", { viewBox: `0 0 ${w} ${h}`, width: w, class: "figure", role: "img", "aria-label": title });
  svg.append(draw("line", { class: "axis", x1: 0, x2: w, y1: h - 4, y2: h - 4 }), draw("polyline", { class: "line", points: line }));
  const [start, end] = [points[0], points[points.length - 1]];
  const belief = `How far the model believed the label, epoch ${first + 1} to ${last + 1}: ${percent(start[1])} to ${percent(end[1])}.`;
  const said = `${belief} Its score: ${start[2].toFixed(1)} to ${end[2].toFixed(1)} (0 is usual, high is bad).`;
  return make("section", { class: "beside" }, make("h3", {}, "Over the training"), svg, make("div", {}, make("small", {}, said)));
}

function facts(i) {
  if (DOC.blind || DOC.asked) return "";
  const interval = CARDS.low[i] == null ? "" : ` (range ${percent(CARDS.low[i])} to ${percent(CARDS.high[i])})`;
  const p = CARDS.p[i] == null ? "No probability in this run" : `Wrong with probability ${percent(CARDS.p[i])}${interval}`;
  const trust = CARDS.confidence[i] == null ? "" : `; confidence of the scores ${percent(CARDS.confidence[i])}`;
  const visits = CARDS.visits[i] ? `; ${counted(CARDS.visits[i], "visit")}` : "";
  return `${p}${trust}${visits}.`;
}

// What the neighbours say, in the same words on every card: on reviewers' pages, which have no other reason.
function neighboursSay(i) {
  const labels = DOC.beside.nearest[i].map(([, label]) => label);
  if (!labels.length || DOC.blind) return "";
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  const parts = [...counts].sort((a, b) => b[1] - a[1]).map(([label, number]) => `${number} ${isolated(className(label))}`);
  return `Labels of its ${labels.length} nearest ${nounOf()}: ${parts.join(", ")}.`;
}

const nounOf = () => (IS_WRITTEN ? (DOC.kinds.length > 1 ? "examples" : `${DOC.kinds[0]}s`) : "pictures");

function headingOf(i) {
  const [given, best] = [className(CARDS.given[i]), className(bestOf(i))];
  const heading = make("h2", { title: pairName(i) }, "Labelled ", make("bdi", {}, given));
  if (best && !DOC.blind) heading.append(", looks like ", make("bdi", {}, best));
  return heading;
}

function noteOf(i) {
  const text = make("textarea", { id: "note", rows: "1", dir: "auto", placeholder: "For yourself and others" });
  text.value = decided.get(i)?.note ?? "";
  text.addEventListener("input", () => note(i, text.value));
  return make("label", { class: "note" }, "Note (T)", text);
}

// What else is known of a card, below what most decisions need.
function furtherOf(i) {
  const [given, best] = [className(CARDS.given[i]), className(bestOf(i))];
  const { typical, harmed, epochs } = DOC.beside;
  return make(
    "div",
    { class: "further" },
    make(
      "div",
      { class: "both" },
      strip(`Typical ${isolated(given)}`, typical[CARDS.given[i]], i, true),
      best && !DOC.blind ? strip(`Typical ${isolated(best)}`, typical[bestOf(i)], i, true) : null,
      strip(`Held-out ${nounOf()} that it harms most, kept as ${isolated(given)}`, harmed[i], i),
    ),
    overEpochs(epochs[i]),
    make("p", {}, make("small", {}, facts(i))),
    noteOf(i),
  );
}

function showFocus() {
  const panel = find("opened");
  if (current < 0) return panel.replaceChildren();
  const i = shown[current];
  const link = CARDS.link[i] ? make("a", { href: CARDS.link[i], target: "_blank", rel: "noreferrer noopener" }, "Open original") : null;
  const seen = make("div", { class: "seen" }, largeExample(i), make("p", { class: "ident" }, shownId(i), link ? " " : null, link));
  const text = spoken(i);
  const why = !DOC.blind && CARDS.why[i] ? `${CARDS.why[i][0].toUpperCase()}${CARDS.why[i].slice(1)}. ` : "";
  const said = make(
    "div",
    { class: "text" },
    headingOf(i),
    text ? make("p", {}, make("strong", { class: "badge-text", "data-decision": decided.get(i).decision }, `Decided: ${text}`)) : null,
    make("p", { class: "why" }, why || neighboursSay(i)),
    make("div", { class: "sheet-actions" }, ...actionButtons()),
    strip(`Nearest training ${nounOf()}, with their labels`, DOC.beside.nearest[i], i),
    furtherOf(i),
  );
  const hint = DOC.sample || DOC.blind || bestOf(i) < 0 ? "" : `Swipe right: ${isolated(className(bestOf(i)))}; left: keep ${isolated(className(CARDS.given[i]))}`;
  const head = make(
    "div",
    { class: "sheet-head", tabindex: "-1" },
    make("button", { type: "button", onclick: () => goTo(current - 1), "aria-label": "previous" }, "←"),
    make("button", { type: "button", onclick: () => goTo(current + 1), "aria-label": "next" }, "→"),
    make("span", {}, `${thousands(current + 1)} of ${thousands(shown.length)}`),
    make("small", { class: "swipe" }, hint),
    make("span", { class: "grow" }),
    make("button", { type: "button", onclick: closeFocus }, "All cards ", make("kbd", {}, "Esc")),
  );
  panel.replaceChildren(head, make("div", { class: "sheet" }, seen, said));
  if (!isFiltering()) head.focus({ preventScroll: true }); // no button: Space and Enter would press it
}

function openFocus() {
  if (current >= 0) chooseMode("focus", true);
}

function closeFocus() {
  chooseMode("cards");
}

// A finger that moves far sideways decides: right takes the first suggestion, left keeps the label.
const SWIPE = 70;
let touched = null;

function startSwipe(event) {
  const isOne = event.touches.length === 1 && !event.target.closest("button, textarea, a, .scroll");
  touched = isOne ? { x: event.touches[0].clientX, y: event.touches[0].clientY } : null;
}

function endSwipe(event) {
  if (!touched || DOC.sample) return;
  const [x, y] = [event.changedTouches[0].clientX - touched.x, event.changedTouches[0].clientY - touched.y];
  touched = null;
  if (Math.abs(x) < SWIPE || Math.abs(y) > 0.5 * Math.abs(x)) return;
  const best = choices()[0];
  if (x < 0) act("keep");
  else if (best !== undefined) act("relabel", [best]);
  else say("There is no suggestion here.");
}

find("opened").addEventListener("touchstart", startSwipe, { passive: true });
find("opened").addEventListener("touchend", endSwipe);
