// @ts-check
// How far a caption can be believed: the rule of xlan.confidence, with what the model's folder has for it.

/**
 * @typedef {{examples: Float32Array, near: number, rich: number, width: number}} Familiar
 * @typedef {{words: string[], weight: Float32Array, bias: Float32Array, width: number}} Head
 * @typedef {{weights: number[], raw: number[], true: number[]}} Curve
 * @typedef {{stop_words: string[], irregular: Record<string, string>, neighbours: number, fall: number,
 *   naming: number, least_doubt: number, clearly_seen: number}} Rules
 * @typedef {{word: Curve, caption: Curve}} Calibration
 * @typedef {{text: string, probability: number, confidence?: number | null}} Word
 * @typedef {{words: Word[], confidence: number}} Caption
 * @typedef {{features: Float32Array, count: number, width: number, boxes: number[][]}} Regions features [count · width]
 */

const LOWEST = -8; // log-probability of a word

/** @param {number} x @param {number} low @param {number} high */
const clip = (x, low, high) => Math.min(high, Math.max(low, x));

/** @param {number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** @param {number[]} values */
const mean = (values) => sum(values) / values.length;

/** Linear between the points of a curve, level beyond them. @param {number} x @param {number[]} xs @param {number[]} ys */
export function between(x, xs, ys) {
  if (x <= xs[0]) return ys[0];
  for (let i = 1; i < xs.length; i++) {
    if (x <= xs[i]) return ys[i - 1] + ((ys[i] - ys[i - 1]) * (x - xs[i - 1])) / (xs[i] - xs[i - 1]);
  }
  return ys[ys.length - 1];
}

/** @param {Curve} curve @param {number[]} features */
function chance(curve, features) {
  const logit = clip(features.reduce((sum, value, i) => sum + value * curve.weights[i], 0), -30, 30);
  return between(1 / (1 + Math.exp(-logit)), curve.raw, curve.true);
}

/** 16-bit floats. @param {Uint16Array} halves */
function singles(halves) {
  return Float32Array.from(halves, (half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const [power, rest] = [(half >> 10) & 31, half & 1023];
    if (power === 31) return rest ? NaN : sign * Infinity;
    return sign * (power ? 2 ** (power - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
  });
}

/** How the types of a safetensors file are read. @type {Record<string, (bytes: ArrayBuffer) => Float32Array>} */
const TYPES = {
  F32: (bytes) => new Float32Array(bytes),
  F16: (bytes) => singles(new Uint16Array(bytes)),
  I8: (bytes) => Float32Array.from(new Int8Array(bytes)),
};

/**
 * A safetensors file with tensors of 16- or 32-bit floats, or of 8 bits with a scale for each row.
 * @param {ArrayBuffer} file
 * @returns {{about: Record<string, string>, tensors: Record<string, {shape: number[], data: Float32Array}>}}
 */
export function tensorsOf(file) {
  const length = Number(new DataView(file).getBigUint64(0, true));
  const { __metadata__: about = {}, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
  /** @type {Record<string, {shape: number[], data: Float32Array}>} */
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [first, behind] }] of Object.entries(entries)) {
    const bytes = file.slice(8 + length + first, 8 + length + behind); // a copy is aligned, the file may not be
    if (!Object.hasOwn(TYPES, dtype)) throw new Error(`${name} is of type ${dtype}`);
    tensors[name] = { shape, data: TYPES[dtype](bytes) };
  }
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    const scales = tensors[`${name}.scales`]?.data;
    if (scales) data.forEach((value, i) => (data[i] = value * scales[Math.floor(i / shape[1])]));
  }
  return { about, tensors };
}

/** What a model's training pictures look like. @param {ArrayBuffer} file @returns {Familiar} */
export function familiarOf(file) {
  const { examples, near, rich } = tensorsOf(file).tensors;
  return { examples: examples.data, near: near.data[0], rich: rich?.data[0] ?? 0, width: examples.shape[1] };
}

/** Which words the vision network can name. @param {ArrayBuffer} file @returns {Head} */
export function headOf(file) {
  const { about, tensors } = tensorsOf(file);
  const { weight, bias } = tensors;
  return { words: JSON.parse(about.words), weight: weight.data, bias: bias.data, width: weight.shape[1] };
}

export class Judge {
  /** @param {Rules} rules @param {Familiar | null} familiar @param {Head | null} head @param {Calibration | null} calibration */
  constructor(rules, familiar, head, calibration) {
    this.rules = rules;
    this.familiar = familiar;
    this.head = head;
    this.calibration = calibration;
    this.stop = new Set(rules.stop_words);
    /** @type {Map<string, number[]>} */
    this.outputs = new Map();
    head?.words.forEach((word, i) => this.outputs.set(this.fold(word), [...(this.outputs.get(this.fold(word)) ?? []), i]));
  }

  /** Singular and plural of a noun as one form. @param {string} word */
  fold(word) {
    if (Object.hasOwn(this.rules.irregular, word)) return this.rules.irregular[word];
    if (word.length <= 3 || !word.endsWith("s") || /(ss|us|is)$/.test(word)) return word;
    if (word.endsWith("ies") && word.length > 4) return `${word.slice(0, -3)}y`;
    return /(ches|shes|xes|sses|zzes)$/.test(word) ? word.slice(0, -2) : word.slice(0, -1);
  }

  /** How much a picture looks like those of training, 0 to 1; 1 where that is not known. @param {Regions} regions */
  familiarity({ features, count, width }) {
    if (!this.familiar) return 1;
    const { examples, near, rich } = this.familiar;
    const direction = new Float32Array(width);
    features.forEach((value, i) => (direction[i % width] += value / count));
    const length = Math.max(1e-12, Math.hypot(...direction));
    const cosines = Array.from({ length: examples.length / width }, (_, i) => {
      let sum = 0;
      for (let k = 0; k < width; k++) sum += direction[k] * examples[i * width + k];
      return sum / length;
    });
    const nearest = cosines.sort((a, b) => b - a).slice(0, this.rules.neighbours);
    const richness = (direction.reduce((total, value) => total + Math.abs(value), 0) / length) ** 2 / width;
    const tooFar = Math.max(0, (1 - mean(nearest)) / near - 1);
    return Math.exp(-this.rules.fall * (tooFar + Math.max(0, rich / Math.max(1e-9, richness) - 1)));
  }

  /**
   * The log-odds of each word that the vision network can name; singular and plural are one, the likelier counts.
   * @param {Regions} regions
   * @returns {Map<string, number>}
   */
  seen({ features, count, width, boxes }) {
    const head = this.head;
    if (!head) return new Map();
    const whole = boxes.map(([x0, y0, x1, y1]) => x0 === 0 && y0 === 0 && x1 === 1 && y1 === 1);
    const parts = [...Array(count).keys()].filter((i) => whole.every(Boolean) || !whole[i]);
    const votes = new Float64Array(parts.length);
    const logit = (/** @type {number} */ output) => {
      const row = head.weight.subarray(output * width, (output + 1) * width);
      parts.forEach((region, i) => {
        let vote = head.bias[output];
        for (let k = 0, at = region * width; k < width; k++) vote += features[at + k] * row[k];
        votes[i] = vote;
      });
      const highest = votes.reduce((a, b) => Math.max(a, b));
      return highest + Math.log(votes.reduce((total, vote) => total + Math.exp(vote - highest), 0) / votes.length);
    };
    return new Map([...this.outputs].map(([form, outputs]) => [form, Math.max(...outputs.map(logit))]));
  }

  /** How rare a form is: the head's words are in order, commonest first. @param {string} form */
  rarity(form) {
    return Math.log(2 + (this.outputs.get(form) ?? [0])[0]);
  }

  /**
   * What each word of a vocabulary adds to the log-probability of a caption that names it, and which are forms of one.
   * @param {Map<string, number>} seen @param {string[]} words
   * @returns {{ids: number[], forms: string[]} | undefined}
   */
  worth(seen, words) {
    if (!seen.size) return undefined;
    const content = [...seen].filter(([form]) => !this.stop.has(form));
    const shares = content.map(([form, odds]) => /** @type {const} */ ([form, this.rarity(form) / (1 + Math.exp(-odds))]));
    const all = Math.max(1e-9, sum(shares.map(([, share]) => share)));
    const naming = new Map(shares.map(([form, share]) => [form, (this.rules.naming * share) / all]));
    const forms = words.map((word) => this.fold(word));
    return { ids: forms.map((form) => naming.get(form) ?? 0), forms };
  }

  /**
   * Confidences of a picture's captions, the best first; they are written into them.
   * @param {Caption[]} captions @param {Regions} regions @param {Map<string, number>} [seen] what `seen` found
   */
  judge(captions, regions, seen = this.seen(regions)) {
    const familiarity = this.familiarity(regions);
    const said = captions.map(({ words }) => new Set(words.filter((w) => !this.stop.has(w.text)).map((w) => this.fold(w.text))));
    captions.forEach((caption, i) => {
      if (this.calibration) this.calibrate(caption, said.filter((_, j) => j !== i), Math.log(Math.max(familiarity, 1e-3)), seen);
      else caption.confidence *= familiarity;
    });
  }

  /** @param {Caption} caption @param {Set<string>[]} others @param {number} familiar log @param {Map<string, number>} seen */
  calibrate(caption, others, familiar, seen) {
    const curves = /** @type {Calibration} */ (this.calibration);
    const logs = caption.words.map(({ probability }) => Math.log(Math.max(probability, Math.exp(LOWEST))));
    const average = mean(logs.length ? logs : [LOWEST]);
    /** @type {number[]} */
    const chances = [];
    /** @type {Set<string>} */
    const named = new Set();
    caption.words.forEach((word, i) => {
      word.confidence = null;
      if (this.stop.has(word.text)) return;
      const form = this.fold(word.text);
      named.add(form);
      const agreeing = others.length ? others.filter((other) => other.has(form)).length / others.length : 0.5;
      const logit = clip(seen.get(form) ?? 0, -9, 5);
      const eyes = !seen.has(form) ? [0, 0, 0, 0] : [1, logit, Math.min(0, logit + 3), Math.max(0, logit)];
      word.confidence = chance(curves.word, [1, logs[i], Math.min(0, logs[i] + 1), average, agreeing, ...eyes, familiar]);
      chances.push(clip(word.confidence, 0.01, 0.99));
    });
    const logits = (chances.length ? chances : [0.1]).map((share) => Math.log(share / (1 - share)));
    const expected = [...seen].filter(([form]) => !this.stop.has(form)).map(([form, odds]) => ({ form, chance: 1 / (1 + Math.exp(-odds)) }));
    const share = (/** @type {(word: {form: string, chance: number}) => number} */ weight) =>
      sum(expected.filter(({ form }) => named.has(form)).map(weight)) / Math.max(1e-9, sum(expected.map(weight)));
    const content = caption.words.filter(({ text }) => !this.stop.has(text));
    const missing = content.map(({ probability }) => Math.log(Math.max(0, 1 - probability) + this.rules.least_doubt));
    const likeliest = expected.map((word) => word.chance).sort((a, b) => b - a).slice(0, this.rules.clearly_seen);
    const whole = [
      average,
      familiar,
      share((word) => word.chance),
      share((word) => word.chance * this.rarity(word.form)),
      missing.length ? mean(missing) : 0,
      sum(likeliest.map((value) => value * value)) / Math.max(1e-9, sum(likeliest)),
    ];
    caption.confidence = chance(curves.caption, [1, mean(logits), Math.min(...logits), ...whole]);
  }
}
