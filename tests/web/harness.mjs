// Runs the page's functions on cases from standard input and prints what they give, as JSON.
import { readFileSync } from "node:fs";

const { function: name, cases } = JSON.parse(readFileSync(0, "utf-8"));

/** The model of the Python test: what is remembered of a sentence is a number, which chooses a row of a table. */
async function search({ table, request }) {
  const { search: run } = await import("./search.js");
  const size = table[0].length;
  const model = {
    vocabSize: size,
    select: (rows, index) => index.map((i) => rows[i]),
    step: async (tokens, rows) => {
      const next = rows.map((row, i) => (31 * row + tokens[i] + 1) % table.length);
      return { logProbs: Float32Array.from(next.flatMap((row) => table[row].map((v) => v ?? NaN))), spatial: Float32Array.from(next), rows: next };
    },
  };
  try {
    const found = await run(model, [0], request);
    return found.map((one) => ({ ...one, spatial: one.spatial.map((row) => [...row]) }));
  } catch (error) {
    return { error: error.message };
  }
}

/** A runtime whose decoder has no output `spatial`, as the graphs of a model without attention. */
async function unseeing({ logProbs, request }) {
  const { Model } = await import("./model.js");
  const { search: run } = await import("./search.js");
  const Tensor = class {
    constructor(type, data, dims) {
      Object.assign(this, { type, data, dims });
    }
  };
  const encoder = { outputNames: ["memory.hidden"], run: async () => ({ "memory.hidden": new Tensor("float32", new Float32Array(2), [1, 2]) }) };
  const decoder = {
    inputNames: ["tokens", "memory.hidden", "state.hidden"],
    inputMetadata: [{ name: "state.hidden", shape: ["rows", 2] }],
    outputNames: ["log_probs", "next.hidden"],
    outputMetadata: [{ name: "log_probs", shape: ["rows", logProbs.length] }],
    run: async ({ tokens, "state.hidden": state }) => ({
      log_probs: new Tensor("float32", Float32Array.from([...tokens.data].flatMap(() => logProbs)), [tokens.data.length, logProbs.length]),
      "next.hidden": state,
    }),
  };
  const model = new Model({ Tensor }, encoder, decoder);
  const [best] = await run(model, model.start(await model.encode(new Float32Array(4), 1)), request);
  return { ids: best.ids, spatial: best.spatial };
}

async function squashed({ data, width, height, size }) {
  const { squashed: run } = await import("./pixels.js");
  return [...run({ data: Uint8Array.from(data), width, height }, size)];
}

async function drafted({ data, width, height, least }) {
  const { drafted: run } = await import("./pixels.js");
  const { width: w, height: h, data: made } = run({ data: Uint8Array.from(data), width, height }, least);
  return { width: w, height: h, data: [...made] };
}

/** Files arrive in base64. */
async function judged({ rules, familiar, head, calibration, captions, regions, vocabulary }) {
  const { Judge, familiarOf, headOf } = await import("./confidence.js");
  const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64")).buffer;
  const judge = new Judge(rules, familiar && familiarOf(bytes(familiar)), head && headOf(bytes(head)), calibration);
  const seen = judge.seen({ ...regions, features: Float32Array.from(regions.features) });
  judge.judge(captions, { ...regions, features: Float32Array.from(regions.features) }, seen);
  const believed = captions.map(({ confidence, words }) => ({ confidence, words: words.map((word) => word.confidence ?? null) }));
  return { captions: believed, worth: judge.worth(seen, vocabulary) ?? null };
}

const functions = { search, unseeing, squashed, drafted, judged };
const answers = [];
for (const one of cases) answers.push(await functions[name](one));
console.log(JSON.stringify(answers));
