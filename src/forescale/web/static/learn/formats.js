"use strict";
// Number formats: bits, range, resolution, and what a number becomes in each.

(() => {
  const { svg, text, digits, table, data } = Learn;

  // Exponent bits, mantissa bits, bits stored, and the largest finite value where the format keeps codes for it.
  const FORMATS = [
    { name: "fp32", exponent: 8, mantissa: 23, bits: 32 }, { name: "tf32", exponent: 8, mantissa: 10, bits: 32, remark: "19 bits used; stored as fp32" },
    { name: "bf16", exponent: 8, mantissa: 7, bits: 16 }, { name: "fp16", exponent: 5, mantissa: 10, bits: 16 },
    { name: "fp8 e4m3", exponent: 4, mantissa: 3, bits: 8, largest: 448, remark: "no infinity; one code for NaN" }, { name: "fp8 e5m2", exponent: 5, mantissa: 2, bits: 8 },
    { name: "fp4 e2m1", exponent: 2, mantissa: 1, bits: 4, largest: 6, remark: "no infinity, no NaN; scaled per block" },
  ].map((format) => {
    const bias = 2 ** (format.exponent - 1) - 1;
    return {
      ...format, bias, epsilon: 2 ** -format.mantissa, smallest: 2 ** (1 - bias), subnormal: 2 ** (1 - bias - format.mantissa),
      largest: format.largest || (2 - 2 ** -format.mantissa) * 2 ** (2 ** format.exponent - 2 - bias),
    };
  });

  // Round to nearest, ties to even; overflow where rounding without a limit would exceed the largest value.
  function rounded(value, format) {
    if (value === 0 || !Number.isFinite(value)) return value;
    const exponent = Math.max(Math.floor(Math.log2(Math.abs(value))), 1 - format.bias), unit = 2 ** (exponent - format.mantissa), scaled = Math.abs(value) / unit;
    const low = Math.floor(scaled), rest = scaled - low, whole = rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
    const result = Math.sign(value) * whole * unit;
    return Math.abs(result) > format.largest ? Math.sign(value) * Infinity : result;
  }

  const short = (value) => (value >= 1e4 || value < 1e-3 ? value.toExponential(2).replace("e+", "e") : digits(value, 4));

  function became(value, format) {
    const near = rounded(value, format);
    return Number.isFinite(near) ? `${Number(near.toPrecision(7))}` : "overflow";
  }

  function draw(s, { width }) {
    const format = FORMATS.find(({ name }) => name === s.format), nodes = [], label = 70, bit = (width - label - 4) / 32, row = 26;
    nodes.push(text(0, 12, "bits: sign, exponent, mantissa", { class: "strong" }));
    FORMATS.forEach((one, at) => {
      const y = 20 + at * row, on = one === format ? "outlined" : "";
      nodes.push(text(0, y + 16, one.name, { class: one === format ? "strong" : "" }));
      const used = 1 + one.exponent + one.mantissa;
      for (let place = 0; place < used; place++) {
        const color = place === 0 ? 3 : place <= one.exponent ? 1 : 0;
        nodes.push(svg("rect", { x: label + place * bit, y, width: bit, height: 20, class: `f${color} ${on}` }));
      }
    });
    // Range on a logarithmic axis.
    let y = 20 + FORMATS.length * row + 24;
    const low = -46, high = 40, x = (power) => label + ((power - low) / (high - low)) * (width - label - 8);
    nodes.push(text(0, y - 6, "range (pale: subnormal), powers of ten", { class: "strong" }));
    FORMATS.forEach((one, at) => {
      const top = y + at * 20, on = one === format ? "outlined" : "", [a, b, c] = [one.subnormal, one.smallest, one.largest].map(Math.log10);
      nodes.push(text(0, top + 14, one.name, { class: one === format ? "strong" : "" }), svg("g", {}, svg("title", {}, `${one.name}: ${short(one.subnormal)} to ${short(one.largest)}`),
        svg("rect", { x: x(a), y: top + 3, width: x(b) - x(a), height: 12, class: "f0 faint" }), svg("rect", { x: x(b), y: top + 3, width: x(c) - x(b), height: 12, class: `f0 ${on}` })));
    });
    const base = y + FORMATS.length * 20 + 4;
    nodes.push(svg("line", { x1: x(low), x2: x(high), y1: base, y2: base, class: "axis" }));
    for (let power = -40; power <= 40; power += width < 480 ? 40 : 20) nodes.push(svg("line", { x1: x(power), x2: x(power), y1: base, y2: base + 5, class: "axis" }), text(x(power), base + 18, power ? `10^${power}` : "1", { "text-anchor": power === 40 ? "end" : "middle", class: "small" }));
    // Numbers between 1 and 2.
    y = base + 48;
    const line = (value) => 8 + (value - 1) * (width - 24);
    nodes.push(text(0, y - 10, `numbers of ${format.name} from 1 to 2`, { class: "strong" }), svg("line", { x1: line(1), x2: line(2), y1: y + 10, y2: y + 10, class: "axis" }));
    const steps = 2 ** Math.min(format.mantissa, 8);
    for (let at = 0; at <= steps; at++) nodes.push(svg("line", { x1: line(1 + at / steps), x2: line(1 + at / steps), y1: y, y2: y + 10, class: steps > 64 ? "axis" : "mark" }));
    nodes.push(text(line(1), y + 26, "1", { class: "small" }), text(line(2), y + 26, "2", { class: "small", "text-anchor": "end" }));
    const near = rounded(s.value, format), error = s.value ? Math.abs(near - s.value) / Math.abs(s.value) : 0;
    return {
      height: y + 32,
      nodes,
      formula: [`epsilon = 2^−mantissa = 2^−${format.mantissa} = ${short(format.epsilon)}`, `largest = ${format.name === "fp8 e4m3" ? "1.75 · 2^8" : format.name === "fp4 e2m1" ? "1.5 · 2^2" : `(2 − 2^−${format.mantissa}) · 2^${2 ** format.exponent - 2 - format.bias}`}`],
      value: short(format.largest),
      text: `${format.name} has 1 sign, ${format.exponent} exponent and ${format.mantissa} mantissa bits${format.remark ? ` (${format.remark})` : ""}: from 1 to 2 it has ${(2 ** format.mantissa).toLocaleString("en")} steps. The number ${s.value} becomes ${Number.isFinite(near) ? `${Number(near.toPrecision(9))}, a relative error of ${digits(100 * error)} %` : "an overflow"}.`,
      extra: [table("Number formats", ["format", "bits", "sign", "exponent", "mantissa", "epsilon", "smallest normal", "smallest", "largest", `${s.value} becomes`],
        FORMATS.map((one) => [one.name, `${one.bits}`, "1", `${one.exponent}`, `${one.mantissa}`, short(one.epsilon), short(one.smallest), short(one.subnormal), short(one.largest), became(s.value, one)])),
      table("Recipes: bytes per parameter", ["recipe", "products", "weights", "gradients", "master", "moments", "sum"],
        data.recipes.map((one) => [one.name, one.compute, ...["weights", "gradients", "master", "moments"].map((part) => one.types[part]), digits(one.total)]))],
    };
  }

  Learn.define("formats", {
    title: "Number formats: bits, range and resolution",
    controls: [
      { name: "format", label: "Format", kind: "choice", value: "bf16", options: FORMATS.map(({ name }) => [name, name]) },
      { name: "value", label: "A number to round", kind: "number", value: 0.1, min: -1e38, max: 1e38 },
    ],
    draw,
    formats: FORMATS,
    rounded,
  });
})();
