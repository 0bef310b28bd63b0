"use strict";
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const $ = (id) => document.getElementById(id);
  const BLUE = "#0072b2", ORANGE = "#d55e00", GREEN = "#007a5e", GREY = "#8b94a3";

  // -- small tools ---------------------------------------------------------------------------------------------

  const svg = (tag, attributes = {}, parent = null) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.appendChild(node);
    return node;
  };
  const label = (parent, x, y, text, attributes = {}) => {
    svg("text", { x, y, ...attributes }, parent).textContent = text;
  };
  const extent = (values) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null || Number.isNaN(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  };
  const short = (value) => {
    if (value === null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };
  const day = (milliseconds, span = 0) => {
    const text = new Date(milliseconds).toISOString();
    return span && span < 4 * 86400000 ? text.slice(5, 16).replace("T", " ") : text.slice(0, 10);
  };
  const shown = (value, kind, span) => (kind === "date" ? day(value, span) : short(value));
  const room = (parent) => Math.max(340, Math.min(860, parent.clientWidth || 860));
  const ticks = (low, high, count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
    return found;
  };
  // Dates that a calendar has: the first of a year or month, midnight or a full hour, each with its name.
  const dates = (low, high, count) => {
    const HOUR = 3600000, MONTH = 730.5 * HOUR, raw = (high - low) / count, found = [];
    const hours = [1, 2, 3, 6, 12, 24, 48, 168, 336].find((size) => size * HOUR >= raw);
    if (hours) {
      const step = hours * HOUR;
      for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push([at, day(at, hours < 24 ? 1 : 0)]);
    } else {
      const months = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400].find((size) => size * MONTH >= raw) || 6000;
      const first = new Date(low), start = first.getUTCFullYear() * 12 + first.getUTCMonth();
      for (let month = Math.floor(start / months) * months; ; month += months) {
        const at = new Date(0).setUTCFullYear(Math.floor(month / 12), month % 12, 1);
        if (at > high) break;
        if (at >= low) found.push([at, new Date(at).toISOString().slice(0, months < 12 ? 7 : 4)]);
      }
    }
    return found.length ? found : [[low, day(low)], [high, day(high)]];
  };

  // -- hints under the pointer ---------------------------------------------------------------------------------

  const tip = $("tip");
  const show = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - width - 4))}px`;
    tip.style.top = `${event.clientY > height + 20 ? event.clientY - height - 10 : event.clientY + 16}px`;
  };
  const hide = () => { tip.hidden = true; };
  const hint = (node, text) => {
    node.addEventListener("pointermove", (event) => show(event, text(event)));
    node.addEventListener("pointerleave", hide);
  };

  // -- a plane with axes ---------------------------------------------------------------------------------------

  const plane = (parent, options) => {
    const { width = 420, height = 240, x, y, kind = "number", labels = ["", ""], left = 46, bottom = 34 } = options;
    const top = 8, right = 8;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, parent);
    const at = {
      x: (value) => left + ((value - x[0]) / (x[1] - x[0])) * (width - left - right),
      y: (value) => height - bottom - ((value - y[0]) / (y[1] - y[0])) * (height - top - bottom),
      back: (pixel) => x[0] + ((pixel - left) / (width - left - right)) * (x[1] - x[0]),
    };
    for (const value of ticks(y[0], y[1], 4)) {
      svg("line", { x1: left, x2: width - right, y1: at.y(value), y2: at.y(value), stroke: "#e6e9ee" }, root);
      label(root, left - 6, at.y(value) + 4, short(value), { "text-anchor": "end" });
    }
    const marks = kind === "date" ? dates(x[0], x[1], 4) : ticks(x[0], x[1], 5).map((value) => [value, short(value)]);
    for (const [value, text] of marks) {
      // The last one must not be cut off.
      const middle = Math.min(at.x(value), width - 3.4 * text.length);
      label(root, middle, height - bottom + 15, text, { "text-anchor": "middle" });
    }
    label(root, (left + width - right) / 2, height - 4, labels[0], { "text-anchor": "middle" });
    const along = `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`;
    if (labels[1]) label(root, 0, 0, labels[1], { "text-anchor": "middle", transform: along });
    return { root, at, width, height, left, right, top, bottom };
  };
  const path = (at, xs, ys) => {
    let text = "", pen = "M";
    xs.forEach((x, i) => {
      if (ys[i] === null) { pen = "M"; return; }
      text += `${pen}${at.x(x).toFixed(1)} ${at.y(ys[i]).toFixed(1)}`;
      pen = "L";
    });
    return text;
  };

  // -- gaps ----------------------------------------------------------------------------------------------------

  const drawGaps = (picture) => {
    const canvas = $("gaps");
    canvas.width = picture.width;
    canvas.height = picture.height;
    const context = canvas.getContext("2d"), image = context.createImageData(picture.width, picture.height);
    const shades = Uint8Array.from(atob(picture.shades), (letter) => letter.charCodeAt(0));
    shades.forEach((share, i) => {
      const part = share / 255;
      [0, 114, 178].forEach((colour, j) => { image.data[4 * i + j] = Math.round(244 + (colour - 244) * part); });
      image.data[4 * i + 3] = 255;
    });
    context.putImageData(image, 0, 0);
    canvas.style.height = `${Math.max(60, Math.min(320, picture.height * 5))}px`;
    hint(canvas, (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(picture.width - 1, Math.floor(((event.clientX - box.left) / box.width) * picture.width));
      const row = Math.min(picture.height - 1, Math.floor(((event.clientY - box.top) / box.height) * picture.height));
      const name = facts.names[Math.floor((row / picture.height) * facts.names.length)];
      return `${name}\n${Math.round((100 * shades[row * picture.width + column]) / 255)}% observed here`;
    });
  };

  // -- training and calibration --------------------------------------------------------------------------------

  const drawBound = (bound) => {
    const epochs = bound.map((_, i) => i + 1), settled = bound.slice(Math.floor(bound.length / 10));
    const [low, high] = extent(settled), space = 0.06 * (high - low);
    const frame = plane($("bound"), { width: room($("bound")), x: extent(epochs), y: [low - space, high + space], labels: ["epoch", ""], left: 64 });
    const inside = bound.map((value) => (value === null || value < low - space ? null : value));
    svg("path", { d: path(frame.at, epochs, inside), fill: "none", stroke: BLUE, "stroke-width": 1.8 }, frame.root);
    hint(frame.root, (event) => {
      const box = frame.root.getBoundingClientRect();
      const epoch = Math.round(frame.at.back(((event.clientX - box.left) / box.width) * frame.width));
      const i = Math.max(0, Math.min(bound.length - 1, epoch - 1));
      return `epoch ${i + 1}\n${short(bound[i])} nats`;
    });
  };
  const drawPit = (parent, found) => {
    const share = found.pit, most = Math.max(...share, 2 / share.length);
    const frame = plane(parent, { x: [0, 1], y: [0, 1.1 * most], labels: ["PIT", ""] });
    share.forEach((value, i) => {
      const from = frame.at.x(i / share.length), to = frame.at.x((i + 1) / share.length);
      const bar = svg("rect", { x: from + 1, width: to - from - 2, y: frame.at.y(value), height: frame.at.y(0) - frame.at.y(value), fill: BLUE }, frame.root);
      hint(bar, () => `${short(i / share.length)} to ${short((i + 1) / share.length)}: ${(100 * value).toFixed(1)}% of the cells`);
    });
    const level = frame.at.y(1 / share.length);
    svg("line", { x1: frame.left, x2: frame.width - frame.right, y1: level, y2: level, stroke: ORANGE, "stroke-dasharray": "5 4" }, frame.root);
  };
  const drawReliability = (parent, found) => {
    const frame = plane(parent, { x: [0, 1], y: [0, 1], labels: ["level of the interval", ""] });
    svg("line", { x1: frame.at.x(0), y1: frame.at.y(0), x2: frame.at.x(1), y2: frame.at.y(1), stroke: GREY, "stroke-dasharray": "5 4" }, frame.root);
    const legend = document.createElement("div");
    legend.className = "legend";
    Object.entries(found.curves).forEach(([name, curve], i) => {
      const colour = [BLUE, ORANGE, GREEN][i % 3];
      svg("path", { d: path(frame.at, found.levels, curve), fill: "none", stroke: colour, "stroke-width": 1.8 }, frame.root);
      curve.forEach((value, j) => {
        const dot = svg("circle", { cx: frame.at.x(found.levels[j]), cy: frame.at.y(value), r: 3, fill: colour }, frame.root);
        hint(dot, () => `${name}\n${Math.round(100 * found.levels[j])}% intervals contain ${(100 * value).toFixed(1)}%`);
      });
      const entry = document.createElement("span"), key = document.createElement("i");
      key.style.background = colour;
      entry.append(key, name);
      legend.append(entry);
    });
    parent.append(legend);
  };

  // -- series --------------------------------------------------------------------------------------------------

  const PER_PAGE = 6;
  const state = { page: 0, found: [] };
  const drawSeries = (entry) => {
    const { x, kind, label: name } = facts.series;
    const panel = document.createElement("div"), title = document.createElement("h3");
    title.textContent = entry.name;
    panel.append(title);
    const values = [...entry.l, ...entry.u, ...entry.dots.map((dot) => dot[1])];
    const [low, high] = extent(values), space = 0.05 * (high - low);
    const frame = plane(panel, { x: extent(x), y: [low - space, high + space], kind, labels: [name, ""] });
    const forth = x.map((value, i) => `${frame.at.x(value).toFixed(1)} ${frame.at.y(entry.u[i]).toFixed(1)}`);
    const back = x.map((value, i) => `${frame.at.x(value).toFixed(1)} ${frame.at.y(entry.l[i]).toFixed(1)}`).reverse();
    svg("path", { d: `M${forth.join("L")}L${back.join("L")}Z`, fill: BLUE, opacity: 0.2 }, frame.root);
    svg("path", { d: path(frame.at, x, entry.m), fill: "none", stroke: BLUE, "stroke-width": 1.6 }, frame.root);
    for (const [at, value] of entry.dots) {
      svg("circle", { cx: frame.at.x(at).toFixed(1), cy: frame.at.y(value).toFixed(1), r: 2, fill: "#1d2430" }, frame.root);
    }
    const line = svg("line", { y1: frame.top, y2: frame.height - frame.bottom, stroke: GREY, visibility: "hidden" }, frame.root);
    hint(frame.root, (event) => {
      const box = frame.root.getBoundingClientRect();
      const asked = frame.at.back(((event.clientX - box.left) / box.width) * frame.width);
      let i = 0;
      x.forEach((value, j) => { if (Math.abs(value - asked) < Math.abs(x[i] - asked)) i = j; });
      line.setAttribute("x1", frame.at.x(x[i]));
      line.setAttribute("x2", frame.at.x(x[i]));
      line.setAttribute("visibility", "visible");
      return `${name} ${shown(x[i], kind, 1)}\nmean ${short(entry.m[i])}\n90%: ${short(entry.l[i])} to ${short(entry.u[i])}`;
    });
    frame.root.addEventListener("pointerleave", () => line.setAttribute("visibility", "hidden"));
    return panel;
  };
  const turn = () => {
    const pages = Math.max(1, Math.ceil(state.found.length / PER_PAGE));
    state.page = Math.max(0, Math.min(state.page, pages - 1));
    const part = state.found.slice(state.page * PER_PAGE, (state.page + 1) * PER_PAGE);
    $("panels").replaceChildren(...part.map(drawSeries));
    $("count").textContent = `${state.found.length} output${state.found.length === 1 ? "" : "s"}`;
    $("page").textContent = `${state.page + 1} / ${pages}`;
    $("back").disabled = state.page === 0;
    $("next").disabled = state.page === pages - 1;
  };
  const search = (text) => {
    const wanted = text.trim().toLowerCase();
    state.found = facts.series.entries.filter((entry) => entry.name.toLowerCase().includes(wanted));
    state.page = 0;
    turn();
  };

  // -- colours, maps, latents, correlations --------------------------------------------------------------------

  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const WARM = [[252, 253, 191], [254, 159, 109], [222, 73, 104], [140, 41, 129], [40, 11, 84]];
  const SIGNED = [[33, 102, 172], [247, 247, 247], [178, 24, 43]];
  const colour = (scale, part) => {
    const at = Math.max(0, Math.min(1, part)) * (scale.length - 1), i = Math.min(scale.length - 2, Math.floor(at));
    return `rgb(${scale[i].map((low, j) => Math.round(low + (scale[i + 1][j] - low) * (at - i))).join(",")})`;
  };
  const bar = (parent, scale, low, high) => {
    const legend = document.createElement("div"), strip = document.createElement("span");
    legend.className = "legend";
    strip.style.cssText = `flex:1;max-width:180px;height:10px;align-self:center;background:linear-gradient(90deg,${scale.map((_, i) => colour(scale, i / (scale.length - 1))).join(",")})`;
    legend.append(short(low), strip, short(high));
    parent.append(legend);
  };
  const spacing = (values) => {
    const distinct = [...new Set(values)].sort((a, b) => a - b);
    let least = Infinity;
    for (let i = 1; i < distinct.length; i++) least = Math.min(least, distinct[i] - distinct[i - 1]);
    return Number.isFinite(least) ? least : 1;
  };
  const drawMap = (parent, values, range, scale, step) => {
    const { x, y, labels } = facts.maps, dx = spacing(x), dy = spacing(y);
    const [left, right] = extent(x), [low, high] = extent(y);
    const span = [left - dx / 2, right + dx / 2], rise = [low - dy / 2, high + dy / 2];
    const isGlobe = /^lat/i.test(labels[0]);
    const stretch = isGlobe ? 1 / Math.cos((Math.max(-75, Math.min(75, (low + high) / 2)) * Math.PI) / 180) : 1;
    const height = Math.max(150, Math.min(420, (366 * stretch * (rise[1] - rise[0])) / (span[1] - span[0]) + 42));
    parent.replaceChildren();
    const frame = plane(parent, { height, x: span, y: rise, labels: [labels[1], labels[0]] });
    values.forEach((value, i) => {
      const wide = frame.at.x(x[i] + dx / 2) - frame.at.x(x[i] - dx / 2), tall = frame.at.y(y[i] - dy / 2) - frame.at.y(y[i] + dy / 2);
      const cell = svg("rect", {
        x: frame.at.x(x[i] - dx / 2).toFixed(2), y: frame.at.y(y[i] + dy / 2).toFixed(2), width: Math.max(2, wide + 0.3).toFixed(2),
        height: Math.max(2, tall + 0.3).toFixed(2), fill: colour(scale, (value - range[0]) / (range[1] - range[0])),
      }, frame.root);
      hint(cell, () => `${facts.names[i]}\n${short(value)}`);
    });
    bar(parent, scale, range[0], range[1]);
  };
  const drawMaps = (step) => {
    const { steps, kind, label: name, mean, std } = facts.maps;
    $("when").textContent = `${name} ${shown(steps[step], kind, 0)}`;
    drawMap($("map-mean"), mean[step], extent(mean.flat()), VIRIDIS, step);
    drawMap($("map-std"), std[step], extent(std.flat()), WARM, step);
  };
  const drawLatents = (points) => {
    const xs = extent(points.map((p) => p[0])), ys = extent(points.map((p) => p[1]));
    const pad = (range) => [range[0] - 0.05 * (range[1] - range[0]), range[1] + 0.05 * (range[1] - range[0])];
    const parent = $("latent-chart"), axes = ["first principal axis", "second principal axis"];
    const frame = plane(parent, { width: room(parent), height: 420, x: pad(xs), y: pad(ys), labels: axes });
    const size = Math.max(2.5, Math.min(6, 60 / Math.sqrt(points.length)));
    points.forEach((point, i) => {
      const dot = svg("circle", { cx: frame.at.x(point[0]), cy: frame.at.y(point[1]), r: size, fill: BLUE, opacity: 0.65, "data-name": facts.names[i] }, frame.root);
      hint(dot, () => facts.names[i]);
    });
  };
  const drawMatrix = ({ names, matrix }) => {
    const size = 640 / names.length, root = svg("svg", { viewBox: "0 0 640 640", role: "img", style: "max-width:640px" }, $("matrix"));
    matrix.forEach((row, i) => row.forEach((value, j) => {
      const cell = svg("rect", { x: j * size, y: i * size, width: size + 0.2, height: size + 0.2, fill: colour(SIGNED, (value + 1) / 2) }, root);
      hint(cell, () => `${names[i]}\n${names[j]}\n${value === null ? "–" : value.toFixed(2)}`);
    }));
    bar($("matrix"), SIGNED, -1, 1);
  };

  // -- all of it -----------------------------------------------------------------------------------------------

  if (facts.comparison && facts.comparison.calibration) {
    drawPit($("held-pit"), facts.comparison.calibration);
    drawReliability($("held-reliability"), facts.comparison.calibration);
  }
  if (facts.data && facts.data.picture) drawGaps(facts.data.picture);
  if (facts.training && facts.training.bound.length > 1) drawBound(facts.training.bound);
  if (facts.calibration) {
    drawPit($("pit"), facts.calibration);
    drawReliability($("reliability"), facts.calibration);
  }
  if (facts.series) {
    $("search").addEventListener("input", (event) => search(event.target.value));
    $("back").addEventListener("click", () => { state.page -= 1; turn(); });
    $("next").addEventListener("click", () => { state.page += 1; turn(); });
    for (const link of document.querySelectorAll("[data-output]")) {
      link.addEventListener("click", () => {
        $("search").value = link.dataset.output;
        search(link.dataset.output);
        $("series").scrollIntoView();
      });
    }
    search("");
  }
  if (facts.maps) {
    $("step").addEventListener("input", (event) => drawMaps(Number(event.target.value)));
    drawMaps(0);
  }
  if (facts.latents) drawLatents(facts.latents.points);
  if (facts.correlation) drawMatrix(facts.correlation);
})();
