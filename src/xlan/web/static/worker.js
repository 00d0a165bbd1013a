// @ts-check
// Captions photos away from the page, so that it stays alive: the model is loaded once, photos are taken in turn.

import { Refusal } from "./basics.js";
import { familiarOf, headOf, Judge } from "./confidence.js";
import { file, json, unpacked } from "./download.js";
import { Model } from "./model.js";
import { drafted, squashed, withoutAlpha } from "./pixels.js";
import { search } from "./search.js";

/** @typedef {{type: "load"} | {type: "caption", photo: Blob, beams: number}} Asked */

const EXPORT_FORMAT = 1;
const WEB_FORMAT = 1;
const VOCABULARY_FORMAT = 1;
const CALIBRATION_FORMAT = 1;
const GRAPHS = ["vision.onnx", "encoder.onnx", "decoder.onnx"];
const RUNTIME = "ort.wasm.min.mjs";
const WASM = "ort-wasm-simd-threaded.wasm.bin";

/** Addresses in the folder, relative to this script in its folder `static`. @param {string} name */
const place = (name) => new URL(`../${name}`, import.meta.url).pathname;

/** @param {any} value @param {number} known @param {string} name */
function checkFormat(value, known, name) {
  if (typeof value?.format !== "number") throw new Refusal(`The file ${name} is not one that xlan export wrote.`);
  if (value.format === known) return;
  throw new Refusal(`The file ${name} is of format ${value.format}, this page reads format ${known}. Export the model again.`);
}

/** @param {any} vocabulary @param {number} size of the model's */
function checkVocabulary(vocabulary, size) {
  checkFormat(vocabulary, VOCABULARY_FORMAT, "vocab.json");
  const { words, special } = vocabulary;
  const inside = (/** @type {any} */ id) => Number.isInteger(id) && id >= 0 && id < words.length;
  if (!Array.isArray(words) || !special || ![special.pad, special.bos, special.eos, special.unk].every(inside)) {
    throw new Refusal("The file vocab.json does not list words and special ids.");
  }
  if (words.length !== size) {
    throw new Refusal(`The vocabulary has ${words.length} words, the model has ${size}: they do not belong together.`);
  }
}

/** Curves for the evidence that `Judge` gathers. @param {any} value @param {Record<string, string[]>} features */
function checkCalibration(value, features) {
  checkFormat(value, CALIBRATION_FORMAT, "confidence.json");
  if (JSON.stringify(value.features) === JSON.stringify(features)) return;
  throw new Refusal("The file confidence.json was fitted on other evidence than this page gathers. Export the model again.");
}

/** Everything there is to load, with progress. @param {(got: number, total: number) => void} tell */
async function load(tell) {
  const [web, about] = await Promise.all([json(place("web.json")), json(place("model/export.json"))]);
  checkFormat(web, WEB_FORMAT, "web.json");
  checkFormat(about, EXPORT_FORMAT, "export.json");
  for (const name of [...GRAPHS, "vocab.json"]) {
    if (!about.files?.[name]) throw new Refusal(`The file export.json does not name ${name}: this page needs a model that captions photos.`);
  }
  /** @type {[string, import("./download.js").Said][]} */
  const wanted = [
    ...Object.entries(web.runtime).map(([name, said]) => /** @type {any} */ ([`runtime/${name}`, said])),
    ...Object.entries(about.files).map(([name, said]) => /** @type {any} */ ([`model/${name}`, said])),
  ];
  const total = wanted.reduce((sum, [, said]) => sum + said.bytes, 0);
  let got = 0;
  /** @type {Record<string, ArrayBuffer>} */
  const files = {};
  const fetched = wanted.map(async ([name, said]) => {
    files[name] = await file(place(name), said, (bytes) => tell((got += bytes), total));
  });
  await Promise.all(fetched);
  const vocabulary = JSON.parse(new TextDecoder().decode(files["model/vocab.json"]));
  checkVocabulary(vocabulary, about.model?.vocab_size);
  const ort = await runtime(files);
  const sessions = [];
  for (const name of GRAPHS) sessions.push(await session(ort, name, files[`model/${name}`]));
  const model = new Model(ort, sessions[1], sessions[2]);
  if (model.vocabSize !== vocabulary.words.length) {
    throw new Refusal(`The model speaks ${model.vocabSize} words, its vocabulary has ${vocabulary.words.length}.`);
  }
  const known = (/** @type {string} */ name) => files[`model/${name}`];
  const calibration = known("confidence.json") ? JSON.parse(new TextDecoder().decode(known("confidence.json"))) : null;
  if (calibration) checkCalibration(calibration, web.rules.features);
  const judge = new Judge(
    web.rules,
    known("familiar.safetensors") ? familiarOf(known("familiar.safetensors")) : null,
    known("words.safetensors") ? headOf(known("words.safetensors")) : null,
    calibration,
  );
  return { ort, vision: sessions[0], model, judge, web, about, vocabulary };
}

/** onnxruntime-web, from the folder alone. @param {Record<string, ArrayBuffer>} files */
async function runtime(files) {
  const ort = await import(place(`runtime/${RUNTIME}`));
  ort.env.wasm.wasmBinary = await unpacked(files[`runtime/${WASM}`]);
  ort.env.wasm.wasmPaths = place("runtime/");
  ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send
  ort.env.logLevel = "error";
  return ort;
}

/** @param {any} ort @param {string} name @param {ArrayBuffer} content */
async function session(ort, name, content) {
  try {
    return await ort.InferenceSession.create(new Uint8Array(content), { executionProviders: ["wasm"] });
  } catch (error) {
    throw new Refusal(`The graph ${name} cannot be run in this browser: ${oneLine(error)}`, "Try again");
  }
}

/** @param {unknown} error */
const oneLine = (error) => String(error instanceof Error ? error.message : error).replace(/\s+/g, " ").slice(0, 200);

/** A photo's pixels, upright and on white. @param {Blob} photo */
async function opened(photo) {
  const start = new Uint8Array(await photo.slice(0, 3).arrayBuffer());
  const bitmap = await createImageBitmap(photo, { imageOrientation: "from-image", colorSpaceConversion: "none" }).catch(() => {
    throw new Refusal("This file is not a picture that this browser can read. JPEG, PNG, WebP, GIF and BMP are known.");
  });
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Refusal("This browser has no memory left for a photo of this size.");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  try {
    const rgb = withoutAlpha(context.getImageData(0, 0, width, height).data, width, height);
    return { rgb, jpeg: start[0] === 0xff && start[1] === 0xd8 && start[2] === 0xff };
  } catch {
    throw new Refusal("This photo is too large for this browser.");
  }
}

/** Where the regions are: the whole picture first (if set), then the cells row by row. @param {number} count @param {boolean} whole */
function boxesOf(count, whole) {
  const side = Math.round(Math.sqrt(count - Number(whole)));
  const cells = Array.from({ length: side * side }, (_, i) => {
    const [x, y] = [i % side, Math.floor(i / side)];
    return [x / side, y / side, (x + 1) / side, (y + 1) / side];
  });
  return whole ? [[0, 0, 1, 1], ...cells] : cells;
}

/**
 * A photo as the answer that the server of `xlan serve` would give.
 * @param {Awaited<ReturnType<typeof load>>} loaded @param {Blob} photo @param {number} beams
 */
async function caption({ ort, vision, model, judge, web, about, vocabulary }, photo, beams) {
  const began = performance.now();
  const { rgb, jpeg } = await opened(photo);
  const size = about.vision.input_size;
  const pixels = squashed(jpeg ? drafted(rgb, web.decoding.min_side) : rgb, size);
  const { features } = await vision.run({ pixels: new ort.Tensor("uint8", pixels, [1, size, size, 3]) });
  const [, count, width] = features.dims;
  const boxes = boxesOf(count, about.vision.image_region);
  const regions = { features: features.data, count, width, boxes };
  const seen = judge.seen(regions);
  const found = await search(model, model.start(await model.encode(features.data, count)), {
    beams,
    maxLength: web.decoding.max_length,
    special: vocabulary.special,
    badEndings: web.decoding.bad_endings,
    mayRepeat: web.decoding.may_repeat,
    worth: judge.worth(seen, vocabulary.words),
    runnersUp: web.decoding.runners_up,
  });
  const captions = found.map((one) => ({
    caption: one.words.map((id) => vocabulary.words[id]).join(" "),
    score: one.total,
    confidence: Math.exp(one.total / Math.max(1, one.ids.length)),
    words: one.words.map((id, t) => ({
      text: vocabulary.words[id],
      probability: Math.exp(one.logProbs[t]),
      runners_up: (one.runnersUp[t] ?? []).map(([other, value]) => ({ text: vocabulary.words[other], probability: Math.exp(value) })),
      spatial: one.spatial[t] && [...one.spatial[t]],
    })),
  }));
  judge.judge(captions, regions, seen);
  const [best, ...others] = captions;
  const seconds = { queue: 0, model: (performance.now() - began) / 1000 };
  const image = { width: rgb.width, height: rgb.height };
  const brief = others.map(({ caption: text, score, confidence }) => ({ caption: text, score, confidence }));
  return { ...best, others: brief, boxes, model: web.name, image, seconds };
}

/** @type {ReturnType<typeof load> | null} */
let loading = null;
/** @type {Promise<unknown>} */
let last = Promise.resolve(); // one photo at a time: a second one would only slow down the first

/** @param {Asked} asked */
async function answer(asked) {
  const tell = (/** @type {number} */ got, /** @type {number} */ total) => postMessage({ progress: { got, total } });
  loading ??= load(tell);
  loading.catch(() => (loading = null)); // the next one may try again
  const loaded = await loading;
  if (asked.type === "caption") return caption(loaded, asked.photo, asked.beams);
  return { name: loaded.web.name, parameters: loaded.about.parameters, vocabulary: loaded.vocabulary.words.length };
}

addEventListener("message", ({ data: { id, asked } }) => {
  last = last.then(async () => {
    try {
      postMessage({ id, result: await answer(asked) });
    } catch (error) {
      const known = error instanceof Refusal;
      postMessage({ id, error: known ? error.message : `The caption failed: ${oneLine(error)}.`, again: known ? error.again : "Try again" });
    }
  });
});
