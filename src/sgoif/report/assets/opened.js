// One card, opened: the example large, what speaks against its label, and what lies beside it.
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
  return make("section", { class: "beside" }, make("h3", {}, title), make("div", { class: "scroll compared" }, table));
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
  const visits = CARDS.visits[i] == null ? "" : `; ${counted(CARDS.visits[i], "visit")}`;
  return `${p}${trust}${visits}.`;
}

function openCard() {
  if (current < 0) return;
  const dialog = find("opened");
  const i = shown[current];
  const [given, best] = [className(CARDS.given[i]), className(bestOf(i))];
  const heading = make("h2", { title: pairName(i) }, "Labelled ", make("bdi", {}, given));
  if (best && !DOC.blind) heading.append(", looks like ", make("bdi", {}, best));
  const link = CARDS.link[i] ? make("a", { href: CARDS.link[i], target: "_blank", rel: "noreferrer noopener" }, "Open original") : null;
  const text = make("textarea", { id: "note", rows: "2", dir: "auto", placeholder: "For yourself and others" });
  text.value = decided.get(i)?.note ?? "";
  text.addEventListener("input", () => note(i, text.value));
  const beside = DOC.beside;
  const large = make("div", { class: "large picture" }, exampleOf(i, true));
  const noun = IS_WRITTEN ? (DOC.kinds.length > 1 ? "examples" : `${DOC.kinds[0]}s`) : "pictures";
  const seen = make("div", {}, large, make("p", { class: "ident" }, shownId(i)), link);
  const why = !DOC.blind && CARDS.why[i] ? make("p", {}, CARDS.why[i][0].toUpperCase() + CARDS.why[i].slice(1) + ".") : null;
  const said = make(
    "div",
    { class: "text" },
    heading,
    spoken(i) ? make("p", {}, make("strong", {}, `Decided: ${spoken(i)}`)) : null,
    why,
    make("p", {}, make("small", {}, facts(i))),
    make(
      "div",
      { class: "both" },
      strip(`Typical ${isolated(given)}`, beside.typical[CARDS.given[i]], i, true),
      best && !DOC.blind ? strip(`Typical ${isolated(best)}`, beside.typical[bestOf(i)], i, true) : null,
    ),
    strip(`Held-out ${noun} that it harms most, kept as ${isolated(given)}`, beside.harmed[i], i),
    strip(`Nearest training ${noun}, with their labels`, beside.nearest[i], i),
    overEpochs(beside.epochs[i]),
  );
  const turn = (step) => (goTo(current + step), openCard());
  const head = make(
    "div",
    { class: "sheet-head", tabindex: "-1" },
    make("button", { type: "button", onclick: () => turn(-1), "aria-label": "previous" }, "←"),
    make("button", { type: "button", onclick: () => turn(1), "aria-label": "next" }, "→"),
    make("span", {}, `${thousands(current + 1)} of ${thousands(shown.length)}`),
    make("span", { class: "grow" }),
    make("button", { type: "button", onclick: () => dialog.close() }, "Close ", make("kbd", {}, "Esc")),
  );
  dialog.replaceChildren(head, make("div", { class: "sheet" }, seen, said, make("label", {}, "Note (T)", text)));
  if (!dialog.open) dialog.showModal();
  dialog.append(make("div", { class: "sheet-actions" }, ...actionButtons()));
  dialog.scrollTop = 0;
  head.focus({ preventScroll: true }); // no button: Space and Enter would press it
}

find("opened").addEventListener("close", () => goTo(current));
