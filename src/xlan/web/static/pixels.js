// @ts-check
// Pixels as the model was taught to see them: what xlan.vision.image does with Pillow, to the last bit where a browser
// decodes the same pixels. A canvas would do it in its own way, differently in every browser.

const BITS = 22; // of the fixed-point weights
const REACH = 2; // pixels of the bicubic filter to either side
const SHARPNESS = -0.5; // its one number
const GAP = 3; // reduced by whole factors first, but to no less than so many times the size wanted

/** @typedef {{data: Uint8Array | Uint8ClampedArray, width: number, height: number}} Rgb three bytes per pixel */

/** @param {number} x */
function bicubic(x) {
  const d = Math.abs(x);
  if (d < 1) return ((SHARPNESS + 2) * d - (SHARPNESS + 3)) * d * d + 1;
  return d < 2 ? (((d - 5) * d + 8) * d - 4) * SHARPNESS : 0;
}

/**
 * For each pixel wanted: where its sources begin, and their weights.
 * @param {number} length of the source in pixels @param {number} extent of it that is used, maybe not whole
 * @param {number} size wanted
 */
function filters(length, extent, size) {
  const scale = extent / size;
  const stretch = Math.max(1, scale);
  const shrink = 1 / stretch;
  const support = REACH * stretch;
  return Array.from({ length: size }, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const behind = Math.min(length, Math.trunc(centre + support + 0.5));
    const weights = Array.from({ length: behind - first }, (_, k) => bicubic((k + first - centre + 0.5) * shrink));
    const sum = weights.reduce((a, b) => a + b, 0);
    const whole = weights.map((weight) => Math.trunc((weight / sum) * 2 ** BITS + (weight / sum < 0 ? -0.5 : 0.5)));
    return { first, weights: Int32Array.from(whole) };
  });
}

/**
 * One direction of the resize: lines of pixels, `step` bytes apart, become lines of `filters.length` pixels.
 * @param {Uint8Array | Uint8ClampedArray} source @param {Uint8Array} target @param {ReturnType<typeof filters>} wanted
 * @param {{lines: number, line: number, step: number, lineOut: number, stepOut: number}} layout in bytes
 */
function resample(source, target, wanted, { lines, line, step, lineOut, stepOut }) {
  for (let y = 0; y < lines; y++) {
    for (let i = 0; i < wanted.length; i++) {
      const { first, weights } = wanted[i];
      for (let channel = 0; channel < 3; channel++) {
        let sum = 1 << (BITS - 1);
        let from = y * line + first * step + channel;
        for (let k = 0; k < weights.length; k++, from += step) sum += source[from] * weights[k];
        const value = Math.floor(sum / 2 ** BITS);
        target[y * lineOut + i * stepOut + channel] = value < 0 ? 0 : value > 255 ? 255 : value;
      }
    }
  }
}

/**
 * Means over boxes of pixels; the last ones of a row or column may be narrower.
 * @param {Rgb} image @param {number} across @param {number} down @returns {Rgb}
 */
export function reduced({ data, width, height }, across, down) {
  const [columns, rows] = [Math.ceil(width / across), Math.ceil(height / down)];
  const target = new Uint8Array(3 * columns * rows);
  for (let y = 0; y < rows; y++) {
    const [top, bottom] = [y * down, Math.min(height, (y + 1) * down)];
    for (let x = 0; x < columns; x++) {
      const [left, right] = [x * across, Math.min(width, (x + 1) * across)];
      const count = (bottom - top) * (right - left);
      const share = Math.trunc(Math.fround(2 ** 32 / (256 * count)));
      for (let channel = 0; channel < 3; channel++) {
        let sum = Math.trunc(count / 2);
        for (let v = top; v < bottom; v++) {
          for (let u = left; u < right; u++) sum += data[3 * (v * width + u) + channel];
        }
        target[3 * (y * columns + x) + channel] = Math.floor((sum * share) / 2 ** 24);
      }
    }
  }
  return { data: target, width: columns, height: rows };
}

/**
 * An image squashed to a square: `square_pixels` of xlan.vision.image.
 * @param {Rgb} image @param {number} size @returns {Uint8Array} [size · size · 3]
 */
export function squashed(image, size) {
  if (image.width === size && image.height === size) return Uint8Array.from(image.data);
  const across = Math.trunc(image.width / size / GAP) || 1;
  const down = Math.trunc(image.height / size / GAP) || 1;
  const extent = { width: Math.fround(image.width / across), height: Math.fround(image.height / down) }; // 32 bits in Pillow
  const { data, width, height } = across > 1 || down > 1 ? reduced(image, across, down) : image;
  let middle = data;
  if (width !== size || extent.width !== size) {
    middle = new Uint8Array(3 * size * height);
    const layout = { lines: height, line: 3 * width, step: 3, lineOut: 3 * size, stepOut: 3 };
    resample(data, middle, filters(width, extent.width, size), layout);
  }
  if (height === size && extent.height === size) return Uint8Array.from(middle);
  const result = new Uint8Array(3 * size * size);
  const layout = { lines: size, line: 3, step: 3 * size, lineOut: 3, stepOut: 3 * size };
  resample(middle, result, filters(height, extent.height, size), layout);
  return result;
}

/**
 * A JPEG photo is decoded at a half, a quarter or an eighth where both sides stay long enough; browsers decode all of
 * it, so the means of blocks stand for that here.
 * @param {Rgb} image @param {number} least pixels of a side @returns {Rgb}
 */
export function drafted(image, least) {
  const fits = Math.floor(Math.min(image.width / least, image.height / least));
  const factor = [8, 4, 2].find((one) => fits >= one) ?? 1;
  return factor > 1 ? reduced(image, factor, factor) : image;
}

/** Colours without the fourth byte. @param {Uint8ClampedArray} rgba @param {number} width @param {number} height */
export function withoutAlpha(rgba, width, height) {
  const data = new Uint8Array(3 * width * height);
  for (let i = 0, j = 0; j < data.length; i += 4, j += 3) {
    data[j] = rgba[i];
    data[j + 1] = rgba[i + 1];
    data[j + 2] = rgba[i + 2];
  }
  return { data, width, height };
}
