// What the decisions so far say of the cards not yet seen; `sgoif.review.estimate` in Python does the same.
const SWEEPS = 25;
const PRIOR_OF_ALL = 1; // 1 / variance
const PRIOR_OF_PAIR = 4;

const squash = (value) => 1 / (1 + Math.exp(-value));

function logit(p) {
  const clipped = Math.min(Math.max(p, 1e-4), 1 - 1e-4);
  return Math.log(clipped / (1 - clipped));
}

// p: probabilities; pairs: a key per card; verdicts: Map from card to 1 (wrong) or 0 (right).
// Plain arrays in the loops: this runs over all cards after every few decisions.
function recalibrate(p, pairs, verdicts) {
  const numbers = new Map();
  const cards = [...verdicts.keys()];
  const x = Float64Array.from(cards, (i) => logit(p[i]));
  const y = Float64Array.from(cards, (i) => verdicts.get(i));
  const pairOfRow = Int32Array.from(cards, (i) => {
    if (!numbers.has(pairs[i])) numbers.set(pairs[i], numbers.size);
    return numbers.get(pairs[i]);
  });
  const ofPair = new Float64Array(numbers.size);
  const slope = new Float64Array(numbers.size);
  const bend = new Float64Array(numbers.size);
  let shift = 0;
  const measure = () => {
    slope.fill(0);
    bend.fill(0);
    for (let row = 0; row < cards.length; row++) {
      const pair = pairOfRow[row];
      const q = squash(x[row] + shift + ofPair[pair]);
      slope[pair] += y[row] - q;
      bend[pair] += q * (1 - q);
    }
  };
  const total = (values) => values.reduce((sum, value) => sum + value, 0);
  const step = (down, curve, value, prior) => Math.min(Math.max((down - prior * value) / (curve + prior), -1), 1);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    measure();
    shift += step(total(slope), total(bend), shift, PRIOR_OF_ALL);
    measure();
    for (let pair = 0; pair < ofPair.length; pair++) ofPair[pair] += step(slope[pair], bend[pair], ofPair[pair], PRIOR_OF_PAIR);
  }
  measure();
  let known = PRIOR_OF_ALL; // a pair's decisions tell of all cards what its own shift leaves open
  for (const weight of bend) known += (weight * PRIOR_OF_PAIR) / (weight + PRIOR_OF_PAIR);
  const q = p.map((value, i) => squash(logit(value) + shift + (ofPair[numbers.get(pairs[i])] ?? 0)));
  for (const [i, wrong] of verdicts) q[i] = wrong;
  return { p: q, variance: 1 / known };
}

// Expected errors among some cards, and the standard deviation of that.
function leftOver(q, cards, variance) {
  let expected = 0;
  let spread = 0;
  for (const i of cards) {
    expected += q[i];
    spread += q[i] * (1 - q[i]);
  }
  return { expected, deviation: Math.sqrt(spread + spread ** 2 * variance) };
}
