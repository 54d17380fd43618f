// From which share on suggestions are offered in batches. Decisions move it, so that 95% of what is offered is right.
const TARGET = 0.95;
const CHECKED_BEFORE = 20; // decisions, 95% of them right, that count before any are made
const LEAST_CHECKED = 50; // decisions that may lower the share
const NOTHING = 1.01; // a share that no suggestion has

let leastShare = DOC.least_share;
let lowestTold = leastShare; // the same growth is told once, and so is what follows it
let isShrinkTold = false;

// The lowest share with 95% right at or above it, by pairs of a share and whether the suggestion was right;
// `sgoif.findings.keys.choose_least_share` in Python does the same.
function chooseLeastShare(checked) {
  const sorted = [...checked].sort((a, b) => b[0] - a[0]);
  const numUsual = sorted.filter(([share]) => share >= DOC.least_share).length;
  let [right, isUsualGood, lower, higher] = [0, numUsual === 0, null, NOTHING];
  sorted.forEach(([share, isRight], n) => {
    const count = n + 1;
    right += isRight ? 1 : 0;
    if (count < sorted.length && sorted[count][0] === share) return; // equal shares stand together
    if (count > numUsual) {
      if (right >= TARGET * count && count >= LEAST_CHECKED) lower = share;
    } else if (right + TARGET * CHECKED_BEFORE >= TARGET * (count + CHECKED_BEFORE) - 1e-9) {
      higher = share;
      if (count === numUsual) isUsualGood = true;
    }
  });
  return lower ?? (isUsualGood ? DOC.least_share : higher);
}

const isOffered = (i) => CARDS.agrees[i] && CARDS.shares[i][0] >= leastShare;
const hasBatches = () => CAN_BATCH && NUMBERS.some(isOffered);

// First suggestions with which the neighbours agree, as far as somebody decided about them here or earlier.
function checkedSoFar() {
  const found = [...DOC.past_keys];
  for (const [i, { decision, labels }] of decided) {
    if (!CARDS.agrees[i] || !decision || decision === "unsure") continue;
    found.push([CARDS.shares[i][0], decision === "relabel" && labels[0] === bestOf(i)]);
  }
  return found;
}

function tellGrowth(number, checked) {
  const above = checked.filter(([share]) => share >= leastShare);
  const right = above.filter(([, isRight]) => isRight).length / Math.max(above.length, 1);
  [lowestTold, isShrinkTold] = [leastShare, false];
  const share = number === 1 ? "1 more card shares" : `${thousands(number)} more cards share`;
  say(`${share} an answer that has been right for ${percent(right)} of those you decided.${mode === "batches" ? "" : " B shows them."}`);
}

// The batch in sight stays as it is until it is decided; only later ones change.
function reviseOffers() {
  if (!CAN_BATCH) return;
  const [before, checked] = [leastShare, checkedSoFar()];
  leastShare = chooseLeastShare(checked);
  const [low, high] = [Math.min(before, leastShare), Math.max(before, leastShare)];
  const inSight = new Set(mode === "batches" ? batch.cards : []);
  const isMoved = (i) => CARDS.agrees[i] && CARDS.shares[i][0] >= low && CARDS.shares[i][0] < high && isOpenForBatches(i) && !inSight.has(i);
  const number = low < high ? shown.filter(isMoved).length : 0;
  if (number && view === "review" && queue === "labels") {
    if (leastShare < lowestTold) tellGrowth(number, checked);
    else if (leastShare > before && !isShrinkTold) {
      isShrinkTold = true;
      say(`${counted(number, "card is", "cards are")} no longer offered in batches: too few such answers were right.`);
    }
  }
  showOffers();
}

const countOffered = () => shown.filter(isBatchable).length;

function showOffers() {
  const number = countOffered();
  find("batch-count").textContent = number ? thousands(number) : "";
  showModeButtons();
  if (mode !== "batches" || queue !== "labels" || find("review").hidden) return;
  if (batch.cards.length) showBatchButtons();
  else showBatchesDone(document.activeElement === document.body || find("batches").contains(document.activeElement));
}
