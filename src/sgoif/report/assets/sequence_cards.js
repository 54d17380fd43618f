// Cards of sequences: prompt and completion, numbers, harm by group, tokens, and sequences with similar prompts.
const MOST_GROUPS = 5; // that a card shows before it is asked for more
const LEVELS = 5; // shades of a token
const NAMED_TOKENS = 3;
const MEAN = "all groups (mean)";

const short = (value) => (value == null ? "?" : Number(value.toPrecision(3)).toString().replace("-", "−"));
const signed = (value) => (value != null && value > 0 ? `+${short(value)}` : short(value));

function numbersOf(i) {
  const [worst, [p, low, high]] = [CARDS.worst_group[i], CARDS.p[i]];
  const items = [
    ...(p == null ? [] : [["p wrong", `${short(p)} (${short(low)} to ${short(high)})`]]), // of a checked sample
    ["suspicion", short(CARDS.suspicion[i])],
    [CARDS.visits[i] === 1 ? "loss" : "last loss", short(CARDS.loss_last[i])],
    ...(CARDS.visits[i] === 1 ? [] : [["first loss", short(CARDS.loss_first[i])], ["mean loss", short(CARDS.loss[i])]]),
    ...(CARDS.loss_tuned[i] == null ? [] : [["tuned loss", short(CARDS.loss_tuned[i])]]), // of an audit
    ...(CARDS.conflict[i] == null ? [] : [["conflict", signed(CARDS.conflict[i])]]),
    ...(CARDS.coverage[i] == null ? [] : [["coverage", short(CARDS.coverage[i])]]),
    ["mean harm", signed(CARDS.harm[i])],
    ["harms most", worst == null ? "not judged" : make("bdi", {}, worst)],
    ["tokens", CARDS.num_tokens[i] == null ? "?" : thousands(CARDS.num_tokens[i])],
    ["visits", CARDS.visits[i] == null ? "?" : thousands(CARDS.visits[i])],
  ];
  return make("dl", { class: "figures-row" }, ...items.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function block(title, text, left, kind) {
  const body = text ? make("p", { class: "written", dir: "auto" }, text) : make("p", { class: "written none" }, "(empty)");
  if (left) body.append(make("small", {}, ` … ${counted(left, "character")} more, not in this file`));
  const box = make("div", { class: "frame", tabindex: text.length > 1200 ? "0" : null, role: "group", "aria-label": title }, body);
  return make("section", { class: kind }, make("h3", {}, title), box);
}

function textsOf(i) {
  if (!DOC.has_texts) return [];
  if (CARDS.completion[i] == null) return [make("p", { class: "none" }, "The file of texts has no sequence with this id.")];
  const [left, leftOver] = CARDS.left[i];
  const isDivided = CARDS.prompt[i] !== "";
  return [isDivided ? block("Prompt", CARDS.prompt[i], left, "prompt") : null, block(isDivided ? "Completion" : "Text", CARDS.completion[i], leftOver, "completion")];
}

// A bar to the right of the middle for harm, to the left for help; the scale is that of the card.
function harmBar(value, most) {
  const width = most > 0 ? (50 * Math.abs(value)) / most : 0;
  const box = { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "harm-bar", "aria-hidden": "true" };
  const bar = draw("rect", { class: value > 0 ? "raises" : "lowers", x: value > 0 ? 50 : 50 - width, y: 1, width, height: 8 });
  return draw("svg", box, draw("rect", { class: "track", width: 100, height: 10 }), bar, draw("line", { class: "middle", x1: 50, x2: 50, y1: 0, y2: 10 }));
}

function harmsOf(i) {
  const known = CARDS.harms[i].filter(([, value]) => value != null).sort((a, b) => b[1] - a[1]);
  if (!known.length) return make("section", { class: "beside" }, make("h3", {}, "Harm by group"), make("p", { class: "none" }, CARDS.num_tokens[i] ? "Not judged: its visits came before the first look at the groups, or were not finite." : "Not judged: it has no token to predict."));
  const most = Math.max(...known.map(([, value]) => Math.abs(value)));
  const shown = new Set([...known].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, MOST_GROUPS)); // help, too
  const row = (pair, n, [group, value] = pair) =>
    make("tr", { class: shown.has(pair) ? false : "more", hidden: !shown.has(pair) }, make("th", { scope: "row", title: group }, n === 0 && value > 0 ? make("small", {}, "worst ") : null, make("bdi", {}, group)), make("td", {}, harmBar(value, most)), make("td", { class: "right" }, signed(value)));
  const table = make("table", { class: "harms" }, make("tbody", {}, ...known.map((pair, n) => row(pair, n))));
  const rest = known.length - MOST_GROUPS;
  const button = rest > 0 ? make("button", { type: "button", class: "link" }, `${counted(rest, "group")} more`) : null;
  button?.addEventListener("click", () => (table.querySelectorAll(".more").forEach((line) => (line.hidden = false)), button.remove()));
  return make("section", { class: "beside" }, make("h3", {}, "Harm by group"), table, button);
}

function tokenNumbers([text, loss, harm]) {
  return `${JSON.stringify(text)}: harm ${signed(harm)}, loss ${short(loss)}`;
}

// Shades are classes and not styles, which the page's policy forbids; without colour the underlines differ.
function tokenSpan(token, most) {
  const [text, , harm] = token;
  const level = harm == null || most === 0 ? 0 : Math.ceil(LEVELS * Math.abs(harm) / most);
  const kind = level ? `${harm > 0 ? "raises" : "lowers"} level-${level}` : "";
  return make("span", { class: `token ${kind}`, title: tokenNumbers(token) }, text.replaceAll("\n", "⏎\n"));
}

function tokenTable([group, tokens]) {
  const most = Math.max(0, ...tokens.map(([, , harm]) => Math.abs(harm ?? 0)));
  const text = make("p", { class: "written tokens", dir: "auto" }, ...tokens.map((token) => tokenSpan(token, most)));
  text.addEventListener("click", (event) => event.target.title && say(event.target.title));
  const sum = tokens.reduce((total, [, , harm]) => total + (harm ?? 0), 0);
  const harmful = tokens.filter(([, , harm]) => harm > 0).sort((a, b) => b[2] - a[2]).slice(0, NAMED_TOKENS);
  const named = harmful.length ? `Largest: ${harmful.map(([word, , harm]) => `${JSON.stringify(word)} ${signed(harm)}`).join(", ")}.` : "No token raises its loss.";
  const measured = `: ${signed(sum)} in all when the tokens were measured. `;
  return make("div", { class: "token-table" }, make("p", { class: "about" }, "Harm to ", make("bdi", {}, group || MEAN), measured, named), make("div", { class: "frame" }, text));
}

function tokensOf(i) {
  if (!CARDS.tokens[i].length) return null;
  const legend = make("span", { class: "legend", title: "Darker is more. Point at a token, or tap it, for its numbers." }, make("span", { class: "token raises level-4" }, "raises"), " or ", make("span", { class: "token lowers level-4" }, "lowers"), " the loss of the group");
  return make("section", { class: "beside" }, make("div", { class: "token-head" }, make("h3", {}, "Which tokens carry the harm"), legend), ...CARDS.tokens[i].map(tokenTable));
}

function similarOf(i) {
  if (CARDS.completion[i] == null) return null;
  const found = CARDS.similar[i];
  const isDivided = CARDS.prompt[i] !== ""; // else there is one text, which is another for every sequence
  const title = make("h3", {}, isDivided ? "Similar prompts" : "Similar texts");
  if (!found.length) return make("section", { class: "beside" }, title, make("p", { class: "none" }, "None that shares more than common words."));
  const others = found.filter(([, , , , isSame]) => !isSame).length;
  const said = isDivided ? make("p", { class: "about" }, others ? `${others} of ${found.length} with another completion` : "all with the same completion") : null;
  const items = found.map(([id, cosine, prompt, completion, isSame]) =>
    make("li", {}, make("small", {}, make("bdi", { class: "ident" }, id), `, similarity ${cosine.toFixed(2)}`), prompt ? make("p", { class: "written", dir: "auto" }, prompt) : null, make("p", { class: `written ${isDivided ? `answer ${isSame ? "same" : "other"}` : ""}`, dir: "auto" }, isDivided ? make("small", {}, isSame ? "= same: " : "≠ other: ") : null, completion)),
  );
  return make("section", { class: "beside" }, title, said, make("ul", { class: "quotes similar" }, ...items));
}

const whyNoEdit = (i) => (CARDS.completion[i] == null ? "The page has no text of this sequence" : CARDS.left[i][1] ? "The completion is too long to be corrected here" : "");

function buttonsOf(i) {
  const [right, wrong, edit, unsure] = DOC.sample ? ["Right", "Wrong", "Edit", "Cannot tell"] : ["Keep", "Drop", "Edit", "Unsure"];
  const button = (key, kind, text, title, run, isOff = false) =>
    make("button", { type: "button", "data-kind": kind, "aria-pressed": kind ? "false" : null, title, disabled: isOff, onclick: run }, make("kbd", {}, key), text);
  return make(
    "div",
    { class: "sheet-actions" },
    button("K", "keep", right, "The sequence is fine", () => act("keep")),
    button("D", "drop", wrong, DOC.sample ? "The completion is wrong" : "Leave it out of the training", () => act("drop")),
    button("E", "edit", edit, whyNoEdit(i) || "Correct the completion", () => openEditor(i), whyNoEdit(i) !== ""),
    button("U", "unsure", unsure, "Cannot be decided", () => act("unsure")),
    button("Z", null, "Undo", "Take the last step back", takeBack),
  );
}

function noteOf(i) {
  const text = make("textarea", { class: "note-text", rows: "1", dir: "auto", placeholder: "For yourself and others" });
  text.value = decided.get(i)?.note ?? "";
  text.addEventListener("focus", () => choose(i));
  text.addEventListener("input", () => note(i, text.value));
  return make("label", { class: "note" }, "Note (T)", text);
}

function contentOf(i) {
  const head = make("div", { class: "card-head" }, make("h2", {}, make("span", { class: "rank" }, `${thousands(i + 1)} `), make("bdi", { class: "ident" }, shownId(i))), make("strong", { class: "badge-text", hidden: true }));
  const edited = make("section", { class: "edited", hidden: true }, make("h3", {}, "Corrected completion"), make("p", { class: "written", dir: "auto" }));
  const said = [...textsOf(i), edited, make("div", { class: "editor" }), buttonsOf(i)];
  if (DOC.sample) return [head, make("div", { class: "said" }, ...said, noteOf(i))]; // nothing of what the run thinks
  const left = make("div", { class: "said" }, ...said, tokensOf(i), noteOf(i));
  const right = make("div", { class: "known" }, similarOf(i), harmsOf(i));
  return [head, numbersOf(i), make("div", { class: "columns" }, left, right)];
}
