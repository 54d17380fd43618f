// Type to find a class among any number of them; Enter takes it. With several, Enter gathers and a second, empty one ends.
const MOST = 60;

const folded = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().trim();
const FOLDED = DOC.classes.map(folded);

// The very name first, then names that start with what was typed, then those that hold it.
function matching(text) {
  const wanted = folded(text);
  const found = [[], [], []];
  for (let label = 0; label < FOLDED.length; label++) {
    const name = FOLDED[label];
    if (name === wanted || String(label) === wanted) found[0].push(label);
    else if (name.startsWith(wanted)) found[1].push(label);
    else if (name.includes(wanted)) found[2].push(label);
  }
  return found.flat().slice(0, MOST);
}

function openFinder(several) {
  const dialog = find("finder");
  const cards = targets();
  if (!cards.length || bringIntoSight()) return;
  const gathered = new Set(several && cards.length === 1 ? (decided.get(cards[0])?.labels ?? []) : []);
  let at = 0;
  let isChosen = false; // by an arrow key: then Enter takes the marked class although nothing is typed
  let labels = [];
  const input = make("input", { type: "text", placeholder: "Type the name of a class", autocomplete: "off", "aria-label": "Class", role: "combobox", "aria-controls": "found", "aria-expanded": "true" });
  const list = make("ul", { id: "found", role: "listbox" });
  const hint = make("small", {});
  const finish = (decision, chosen) => (dialog.close(), act(decision, chosen));
  const take = (label) => {
    if (!several) return finish("relabel", [label]);
    if (!gathered.delete(label)) gathered.add(label);
    input.value = "";
    isChosen = false;
    refresh();
  };
  const end = () => (gathered.size > 1 ? finish("several", [...gathered].sort((a, b) => a - b)) : say("Choose two classes or more."));
  const refresh = () => {
    labels = matching(input.value);
    at = Math.min(at, Math.max(labels.length - 1, 0));
    list.replaceChildren(
      ...labels.map((label, n) =>
        make("li", { role: "option", id: `found-${n}`, "aria-selected": String(n === at), onclick: () => take(label) }, make("bdi", {}, className(label)), gathered.has(label) ? make("span", {}, "✓ chosen") : ""),
      ),
    );
    input.setAttribute("aria-activedescendant", labels.length ? `found-${at}` : "");
    list.children[at]?.scrollIntoView({ block: "nearest" });
    const chosen = [...gathered].map(className).join(" + ");
    if (!labels.length) hint.textContent = "No class is called that.";
    else hint.textContent = several ? `Chosen: ${chosen || "none yet"}. Enter adds, Enter with nothing typed ends.` : "Enter takes the marked class.";
  };
  input.addEventListener("input", () => ((at = 0), (isChosen = false), refresh()));
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return; // Enter ends a word that is written with several keys
    if (event.key === "ArrowDown") at = Math.min(at + 1, labels.length - 1);
    else if (event.key === "ArrowUp") at = Math.max(at - 1, 0);
    else if (event.key === "Enter" && several && !input.value && !isChosen) return event.preventDefault(), end();
    else if (event.key === "Enter") return event.preventDefault(), labels.length && take(labels[at]);
    else return;
    isChosen = true;
    event.preventDefault();
    refresh();
  });
  const done = several ? make("button", { type: "button", class: "primary", onclick: end }, "These classes") : null;
  const whom = cards.length > 1 ? `${counted(cards.length, "card")}` : shownId(cards[0]);
  dialog.replaceChildren(make("div", { class: "find" }, make("strong", {}, several ? "Which classes are right?" : "Which class is it?"), make("small", {}, whom.slice(0, 80)), input, list, hint, done));
  refresh();
  dialog.showModal();
  input.focus();
}
