// @ts-check
// The exported graphs, ready to run: a vision network, an encoder, and a decoder that is stepped word by word.
// What goes in and out of them is described in xlan.export.borders.

import { Refusal } from "./basics.js";

/** @typedef {Record<string, any>} Tensors by name */
/** @typedef {{memory: Tensors, state: Tensors}} Rows */

/** @param {readonly number[]} dims */
const product = (dims) => dims.reduce((a, b) => a * b, 1);

/** Encoder and decoder, as `search` wants them. */
export class Model {
  /** @param {any} ort the runtime @param {any} encoder @param {any} decoder its sessions */
  constructor(ort, encoder, decoder) {
    this.ort = ort;
    this.encoder = encoder;
    this.decoder = decoder;
    const shapes = new Map(decoder.inputMetadata.map((/** @type {any} */ one) => [one.name, one.shape]));
    const named = (/** @type {string} */ start) => decoder.inputNames.filter((/** @type {string} */ n) => n.startsWith(start));
    /** @type {string[]} */
    this.wanted = named("memory.");
    /** @type {[string, (number | string)[]][]} */
    this.states = named("state.").map((/** @type {string} */ name) => [name, shapes.get(name)]);
    this.vocabSize = Number(decoder.outputMetadata.find((/** @type {any} */ one) => one.name === "log_probs")?.shape[1]);
    const known = this.wanted.every((name) => encoder.outputNames.includes(name));
    const stepped = this.states.every(([name]) => decoder.outputNames.includes(name.replace("state.", "next.")));
    if (!this.vocabSize || !this.wanted.length || !known || !stepped) {
      throw new Refusal("These graphs are not the encoder and decoder of a captioning model.");
    }
  }

  /** What the decoder needs of an image. @param {Float32Array} features [count · width] @param {number} count */
  async encode(features, count) {
    const { Tensor } = this.ort;
    const mask = new Tensor("bool", new Uint8Array(count).fill(1), [1, count]);
    return this.encoder.run({ features: new Tensor("float32", features, [1, count, features.length / count]), mask });
  }

  /** One sentence without a word. @param {Tensors} found of `encode` @returns {Rows} */
  start(found) {
    /** @type {Record<string, number>} */
    const sizes = { rows: 1, words: 0 };
    const zeros = this.states.map(([name, shape]) => {
      const dims = shape.map((size) => (typeof size === "number" ? size : sizes[size]));
      return [name, new this.ort.Tensor("float32", new Float32Array(product(dims)), dims)];
    });
    const memory = Object.fromEntries(this.wanted.map((name) => [name, found[name]]));
    return { memory, state: Object.fromEntries(zeros) };
  }

  /** A word more; `spatial` is null where the model does not look. @param {number[]} tokens @param {Rows} rows */
  async step(tokens, rows) {
    const ids = new this.ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [tokens.length]);
    const found = await this.decoder.run({ tokens: ids, ...rows.memory, ...rows.state });
    const state = Object.fromEntries(this.states.map(([name]) => [name, found[name.replace("state.", "next.")]]));
    return { logProbs: found.log_probs.data, spatial: found.spatial?.data ?? null, rows: { memory: rows.memory, state } };
  }

  /** Some of the sentences, in this order; one may repeat. @param {Rows} rows @param {number[]} index @returns {Rows} */
  select(rows, index) {
    const state = Object.entries(rows.state).map(([name, { data, dims }]) => {
      const each = product(dims.slice(1));
      const chosen = new Float32Array(each * index.length);
      index.forEach((row, i) => chosen.set(data.subarray(row * each, (row + 1) * each), i * each));
      return [name, new this.ort.Tensor("float32", chosen, [index.length, ...dims.slice(1)])];
    });
    return { memory: rows.memory, state: Object.fromEntries(state) };
  }
}
