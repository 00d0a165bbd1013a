// @ts-check
// Beam search for one photo: the rule of xlan.engines.numpy_search, number for number. Tests hold the two together.

import { Refusal } from "./basics.js";

/**
 * @typedef {{pad: number, bos: number, eos: number, unk: number}} Special
 * @typedef {{beams: number, maxLength: number, special: Special, badEndings: number[], runnersUp: number,
 *   mayRepeat?: number[], worth?: {ids: number[], forms: string[]}}} Request
 * @typedef {{row: number, ids: number[], logProbs: number[], rows: number[], total: number, finished: boolean}} Beam
 * @typedef {{ids: number[], words: number[], logProbs: number[], total: number, spatial: (Float32Array | null)[],
 *   runnersUp: [number, number][][]}} Decoded
 */

/**
 * A model that can be asked for the next word of every sentence; `Rows` is what it remembers of them.
 * @template Rows
 * @typedef {{vocabSize: number, select: (rows: Rows, index: number[]) => Rows,
 *   step: (tokens: number[], rows: Rows) => Promise<{logProbs: Float32Array, spatial: Float32Array | null, rows: Rows}>}} Stepper
 */

const NEVER = -Infinity;

/**
 * Places of the largest values, likeliest first; of equals the lower id.
 * @param {Float32Array} values @param {number} count @returns {number[]}
 */
export function largest(values, count) {
  /** @type {number[]} */
  const best = [];
  for (let id = 0; id < values.length; id++) {
    if (best.length === count && !(values[id] > values[best[count - 1]])) continue;
    let place = best.length;
    while (place > 0 && values[id] > values[best[place - 1]]) place--;
    best.splice(place, 0, id);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * Forbid words, in place.
 * @param {Float32Array} logProbs of one row @param {number} last the word before, -1 for none
 * @param {number} step words so far @param {Request} request
 */
function control(logProbs, last, step, { special, maxLength, badEndings }) {
  for (const id of [special.pad, special.bos, special.unk]) if (id !== special.eos) logProbs[id] = NEVER;
  if (step === 0 || badEndings.includes(last)) logProbs[special.eos] = NEVER;
  if (maxLength - step === 1) for (const id of badEndings) logProbs[id] = NEVER;
}

/**
 * The best sentences, likeliest first. Finished ones stay in the beam and compete (the released rule).
 * @template Rows
 * @param {Stepper<Rows>} model @param {Rows} rows one fresh row @param {Request} request @returns {Promise<Decoded[]>}
 */
export async function search(model, rows, request) {
  const { beams: width, maxLength, special } = request;
  const size = model.vocabSize;
  /** @type {{logProbs: Float32Array, spatial: Float32Array | null, regions: number}[]} */
  const steps = [];
  /** @type {Beam[]} */
  let beams = [{ row: 0, ids: [], logProbs: [], rows: [], total: 0, finished: false }];
  let tokens = [special.bos];
  for (let step = 0; step < maxLength && tokens.length; step++) {
    const found = await model.step(tokens, rows);
    steps.push({ ...found, regions: (found.spatial?.length ?? 0) / tokens.length });
    beams = grown(beams, found.logProbs, size, step, request);
    const live = beams.filter((beam) => !beam.finished);
    tokens = live.map((beam) => beam.ids[beam.ids.length - 1]);
    rows = live.length ? model.select(found.rows, live.map((beam) => beam.row)) : found.rows;
    live.forEach((beam, row) => (beam.row = row));
  }
  if (!beams.length) throw new Refusal(`No sentence of at most ${maxLength} words is possible.`);
  const found = beams.sort((a, b) => b.total - a.total).slice(0, width);
  const value = (/** @type {Beam} */ { ids, total }) => total + worthOf(ids.filter((id) => id !== special.eos), request.worth);
  found.sort((a, b) => value(b) - value(a));
  if (request.mayRepeat) found.sort((a, b) => repeats(a.ids, request.mayRepeat) - repeats(b.ids, request.mayRepeat));
  return found.map((beam, place) => {
    const finished = beam.ids[beam.ids.length - 1] === special.eos;
    const spatial = beam.rows.map((row, t) => steps[t].spatial?.slice(row * steps[t].regions, (row + 1) * steps[t].regions) ?? null);
    const others = place ? [] : beam.ids.map((id, t) => runnersUp(steps[t].logProbs, beam.rows[t], id, size, request));
    return {
      ids: beam.ids,
      words: finished ? beam.ids.slice(0, -1) : beam.ids,
      logProbs: beam.logProbs,
      total: beam.logProbs.reduce((sum, value) => sum + value, 0),
      spatial,
      runnersUp: others,
    };
  });
}

/**
 * What the picture itself says for the words of a sentence; forms of one word count once.
 * @param {number[]} ids @param {{ids: number[], forms: string[]}} [worth]
 */
function worthOf(ids, worth) {
  if (!worth) return 0;
  const each = new Map(ids.map((id) => [worth.forms[id], worth.ids[id]]));
  return [...each.values()].reduce((sum, value) => sum + value, 0);
}

/**
 * 1 for a sentence that says a word twice, which then comes behind those that do not; else 0.
 * @param {number[]} ids @param {number[]} [mayRepeat] ids that do not count
 */
function repeats(ids, mayRepeat) {
  const counted = ids.filter((id) => !mayRepeat?.includes(id));
  return Number(new Set(counted).size < counted.length);
}

/**
 * Add a word to every live beam and keep the best.
 * @param {Beam[]} beams @param {Float32Array} answers [R · V] @param {number} size V @param {number} step
 * @param {Request} request @returns {Beam[]}
 */
function grown(beams, answers, size, step, request) {
  /** @type {{total: number, beam: Beam, id: number, value: number}[]} */
  const options = [];
  for (const beam of beams) {
    if (beam.finished) {
      options.push({ total: beam.total, beam, id: -1, value: 0 });
      continue;
    }
    const logProbs = answers.slice(beam.row * size, (beam.row + 1) * size); // the answers are needed once more
    if (logProbs.some(Number.isNaN)) throw new Refusal("The model returned numbers that are not finite. Is it damaged?");
    control(logProbs, beam.ids.length ? beam.ids[beam.ids.length - 1] : -1, step, request);
    for (const id of largest(logProbs, request.beams)) {
      const total = Math.fround(beam.total + logProbs[id]);
      if (total > NEVER) options.push({ total, beam, id, value: logProbs[id] });
    }
  }
  // The sort keeps the order of equals: the lower beam first, then the likelier word, then the lower id.
  const best = options.sort((a, b) => b.total - a.total).slice(0, request.beams);
  return best.map(({ total, beam, id, value }) =>
    id < 0
      ? beam
      : {
          row: beam.row,
          ids: [...beam.ids, id],
          logProbs: [...beam.logProbs, value],
          rows: [...beam.rows, beam.row],
          total,
          finished: id === request.special.eos,
        },
  );
}

/**
 * Other ids and their log-probabilities at one place of a sentence, likelier first.
 * @param {Float32Array} answers [R · V] @param {number} row @param {number} chosen @param {number} size V
 * @param {Request} request @returns {[number, number][]}
 */
function runnersUp(answers, row, chosen, size, { special, runnersUp }) {
  const logProbs = answers.slice(row * size, (row + 1) * size);
  const unnamed = new Set([special.pad, special.bos, special.eos, special.unk]);
  for (const id of [...unnamed, chosen]) logProbs[id] = NEVER;
  const count = Math.max(0, Math.min(runnersUp, size - unnamed.size - 1));
  return count ? largest(logProbs, count).map((id) => [id, logProbs[id]]) : [];
}
