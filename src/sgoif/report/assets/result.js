// The result: what the decisions so far make of the data, and how they are applied.
const MOST_ROWS = 100; // of the table of classes
const GOING = new Set(["drop", "none"]);

// Sizes and expected errors by class, before and after. `after` is what remains wrong where all decisions are applied.
function tallyClasses() {
  const classes = DOC.sizes.map(([count, errors]) => ({ before: count, after: count, errors, left: errors }));
  const at = (label) => (classes[label] ??= { before: 0, after: 0, errors: 0, left: 0 });
  const { p } = recalibrated();
  for (let i = 0; i < CARDS.id.length; i++) {
    if (CARDS.source[i] !== "train") continue;
    const [own, value] = [at(CARDS.given[i]), decided.get(i)];
    const isOpen = !value?.decision || value.decision === "unsure";
    if (own.left != null && CARDS.p[i] != null) own.left = Math.max(own.left - CARDS.p[i] + (isOpen ? p[i] : 0), 0);
    if (isOpen) continue;
    if (value.decision === "relabel") at(value.labels[0]).after++;
    if (value.decision === "relabel" || GOING.has(value.decision)) own.after--;
  }
  return classes;
}

const rateOf = (errors, size) => (errors == null || !size ? null : Math.min(errors / size, 1));

function classRow(entry, label) {
  const [before, after] = [rateOf(entry.errors, entry.before), rateOf(entry.left, entry.after)];
  const step = entry.after - entry.before;
  const sign = step > 0 ? `+${thousands(step)}` : step < 0 ? `−${thousands(-step)}` : "";
  const known = make("td", {}, before == null ? "unknown" : [percent(before), " → ", percent(after)].join(""), after == null ? null : meter(after));
  return make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, className(label))), make("td", { class: "right" }, thousands(entry.before)), make("td", { class: "right" }, thousands(entry.after)), make("td", { class: "right" }, sign), known);
}

function showSizes() {
  const classes = tallyClasses();
  const order = classes.map((_, label) => label).filter((label) => classes[label]?.before || classes[label]?.after);
  const change = (label) => Math.abs(classes[label].after - classes[label].before);
  order.sort((a, b) => change(b) - change(a) || classes[b].before - classes[a].before || a - b);
  find("sizes").replaceChildren(...order.slice(0, MOST_ROWS).map((label) => classRow(classes[label], label)));
  find("sizes-note").textContent = order.length > MOST_ROWS ? `The ${MOST_ROWS} of ${thousands(order.length)} classes that change most.` : "";
  const sum = (name) => order.reduce((total, label) => (classes[label][name] == null || total == null ? null : total + classes[label][name]), 0);
  return { before: rateOf(sum("errors"), sum("before")), after: rateOf(sum("left"), sum("after")), numBefore: sum("before"), numAfter: sum("after") };
}

function showDone(found) {
  const counts = {};
  for (const { decision } of decided.values()) if (decision) counts[decision] = (counts[decision] ?? 0) + 1;
  const parts = Object.entries(KINDS).flatMap(([kind, name]) => (counts[kind] ? [`${thousands(counts[kind])} ${name}`] : []));
  const others = QUEUES.slice(1).filter(hasQueue).map((name) => `, ${entriesOf(name).filter(isSettled).length} of ${entriesOf(name).length} ${name}`);
  find("done").textContent = `${thousands(found.reviewed)} of ${counted(COUNT, "card")}${others.join("")} decided${parts.length ? `: ${parts.join(", ")}` : ""}.`;
}

function showLeft(found, rates) {
  const lines = [];
  if (rates.before != null) lines.push(`Estimated error rate: ${percent(rates.before)} before, ${percent(rates.after)} after these decisions.`);
  if (found.left) lines.push(`About ${thousands(Math.round(found.left.expected))} ± ${Math.round(1.645 * found.left.deviation)} wrong labels are left among the ${counted(found.open, "open card")} here, about ${thousands(Math.round(DOC.beyond.errors))} beyond this page.`);
  if (DOC.checked) lines.push(`By ${DOC.checked.num_checked} labels that people checked, ${percent(DOC.checked.value)} of all were wrong (90% interval ${percent(DOC.checked.low)} to ${percent(DOC.checked.high)}).`);
  else lines.push("Nobody has checked a random sample, so these are estimates. sgoif verify draws one and counts.");
  find("left").replaceChildren(...lines.map((text) => make("p", {}, text)));
}

function showAgreement() {
  const { both, same, people } = agreement;
  const names = [...people].map(isolated).join(", ");
  const loaded = `${counted(both, "card was", "cards were")} decided here and in loaded files${names ? ` (${names})` : ""}; ${thousands(same)} in the same way (${percent(same / Math.max(both, 1))}).`;
  find("agreement").textContent = both ? loaded : "Load another reviewer's decisions on this page to compare them with yours. For pages made with --reviewers, sgoif apply measures the agreement.";
}

function showResult() {
  if (!DOC.owner || find("result").hidden) return;
  const found = estimate();
  showDone(found);
  const rates = showSizes();
  showLeft(found, rates);
  showAgreement();
  find("command").textContent = `sgoif apply ${shellWord(DOC.run ?? "RUN")} ${fileName()} --out manifest.parquet`;
}
