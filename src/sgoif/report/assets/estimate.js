// What the decisions so far say of the cards not yet seen; `sgoif.review.estimate` in Python does the same.
const SWEEPS = 25;
const PRIOR_OF_ALL = 1; // 1 / variance
const PRIOR_OF_PAIR = 4;

// p: probabilities; pairs: a key per card; verdicts: Map from card to 1 (wrong) or 0 (right).
function recalibrate(p, pairs, verdicts) {
  const logit = p.map((value) => {
    const clipped = Math.min(Math.max(value, 1e-4), 1 - 1e-4);
    return Math.log(clipped / (1 - clipped));
  });
  const squash = (value) => 1 / (1 + Math.exp(-value));
  const members = new Map();
  for (const i of verdicts.keys()) {
    if (!members.has(pairs[i])) members.set(pairs[i], []);
    members.get(pairs[i]).push(i);
  }
  let shift = 0;
  const ofPair = new Map([...members.keys()].map((pair) => [pair, 0]));
  const all = [...verdicts.keys()];
  const slopes = (cards) => {
    let [slope, bend] = [0, 0];
    for (const i of cards) {
      const q = squash(logit[i] + shift + ofPair.get(pairs[i]));
      slope += verdicts.get(i) - q;
      bend += q * (1 - q);
    }
    return [slope, bend];
  };
  const step = (cards, value, prior) => {
    const [slope, bend] = slopes(cards);
    return Math.min(Math.max((slope - prior * value) / (bend + prior), -1), 1);
  };
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    shift += step(all, shift, PRIOR_OF_ALL);
    for (const [pair, cards] of members) ofPair.set(pair, ofPair.get(pair) + step(cards, ofPair.get(pair), PRIOR_OF_PAIR));
  }
  let known = PRIOR_OF_ALL; // a pair's decisions tell of all cards what its own shift leaves open
  for (const cards of members.values()) {
    const weight = slopes(cards)[1];
    known += (weight * PRIOR_OF_PAIR) / (weight + PRIOR_OF_PAIR);
  }
  const variance = 1 / known;
  const q = logit.map((value, i) => squash(value + shift + (ofPair.get(pairs[i]) ?? 0)));
  for (const [i, wrong] of verdicts) q[i] = wrong;
  return { p: q, variance };
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
