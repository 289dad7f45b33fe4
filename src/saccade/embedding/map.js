"use strict";
// The map: one canvas, one panel, one list of classes. All numbers come from the block of JSON in the page.
(() => {
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const at = (id) => document.getElementById(id);
  const canvas = at("map-canvas"), tip = at("map-tip"), panel = at("map-picked"), state = at("map-state");
  const pen = canvas.getContext("2d");
  const n = data.names.length;
  const COLOURS = ["#2f81d8", "#d9730d", "#2f9e44", "#c2255c", "#8250df", "#0c8599", "#a5750b", "#e64980", "#5c7cfa", "#748b00"];
  const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];
  const hidden = new Set();
  let kept = [], chosen = -1, hovered = -1, view = {scale: 1, x: 0, y: 0}, drag = null, side = {w: 0, h: 0};

  const colour = (label) => COLOURS[label % COLOURS.length];
  const shape = (label) => SHAPES[Math.floor(label / COLOURS.length) % SHAPES.length];

  function make(kind, words, cls) {
    const made = document.createElement(kind);
    if (words) made.textContent = words;
    if (cls) made.className = cls;
    return made;
  }

  function trace(ink, form, x, y, r) {
    ink.beginPath();
    if (form === "circle") ink.arc(x, y, r, 0, 2 * Math.PI);
    else if (form === "square") ink.rect(x - r * 0.88, y - r * 0.88, r * 1.76, r * 1.76);
    else {
      const corners = {
        triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
        diamond: [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
        cross: [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1],
          [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
      }[form];
      corners.forEach(([a, b], i) => (i ? ink.lineTo(x + a * r, y + b * r) : ink.moveTo(x + a * r, y + b * r)));
      ink.closePath();
    }
  }

  // The places fill the canvas; one scale for both axes would leave half of it empty, and axes mean nothing here.
  function place(i) {
    const edge = 22;
    const x = edge + data.x[i] * (side.w - 2 * edge), y = edge + data.y[i] * (side.h - 2 * edge);
    return [(x - view.x) * view.scale, (y - view.y) * view.scale];
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    side = {w: canvas.clientWidth, h: canvas.clientHeight};
    canvas.width = Math.round(side.w * ratio);
    canvas.height = Math.round(side.h * ratio);
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text"), paper = style.getPropertyValue("--paper");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, side.w, side.h);
    const r = Math.max(2.5, Math.min(6, 90 / Math.sqrt(Math.max(kept.length, 1)))) * Math.min(1.6, Math.sqrt(view.scale));
    pen.lineWidth = 0.8;
    pen.strokeStyle = paper;
    for (const i of kept) {
      const [x, y] = place(i);
      if (x < -9 || y < -9 || x > side.w + 9 || y > side.h + 9) continue;
      pen.globalAlpha = 0.85;
      pen.fillStyle = colour(data.label[i]);
      trace(pen, shape(data.label[i]), x, y, r);
      pen.fill();
      pen.stroke();
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = text;
    if (chosen >= 0) {
      pen.lineWidth = 1;
      const [x, y] = place(chosen);
      for (const other of data.near[chosen]) {
        const [a, b] = place(other);
        pen.beginPath();
        pen.moveTo(x, y);
        pen.lineTo(a, b);
        pen.stroke();
      }
    }
    for (const i of new Set([hovered, chosen])) {
      if (i < 0) continue;
      pen.lineWidth = i === chosen ? 2.5 : 1.5;
      trace(pen, "circle", ...place(i), r + 5);
      pen.stroke();
    }
  }

  function thumbnail(i, cls) {
    if (!data.thumbs[i]) return make("span", "no thumbnail", `${cls} none`);
    const image = make("img", "", cls);
    image.src = data.thumbs[i];
    image.alt = "";
    if (data.tiny) image.classList.add("tiny");
    return image;
  }

  const named = (i) => (data.classes.length ? data.classes[data.label[i]] : "");

  function describe(i) {
    const found = [];
    if (named(i)) found.push(`label ${named(i)}`);
    if (data.suspect[i]) found.push(`neighbours say ${data.suspect[i]}`);
    if (data.copy[i]) found.push("may be a copy");
    if (data.split[i]) found.push(data.split[i]);
    return found.join(", ");
  }

  function pick(i) {
    chosen = i;
    panel.replaceChildren();
    if (i < 0) {
      panel.append(make("p", "Choose a point to see its image and the nearest ones.", "soft"));
      draw();
      return;
    }
    const words = make("div", "", "words");
    words.append(make("b", named(i) || "image"), make("code", data.names[i]), make("span", describe(i), "soft"));
    const head = make("div", "", "head");
    head.append(thumbnail(i, "large"), words);
    panel.append(head);
    if (data.near[i].length) {
      const list = make("ul", "", "near");
      for (const other of data.near[i]) {
        const button = make("button", "", named(other) === named(i) ? "" : "other");
        button.type = "button";
        button.setAttribute("aria-label", `nearest: ${data.names[other]}, ${describe(other)}`);
        button.append(thumbnail(other, "small"), make("span", named(other) || data.names[other]));
        button.addEventListener("click", () => { pick(other); canvas.focus(); });
        const item = make("li");
        item.append(button);
        list.append(item);
      }
      panel.append(make("h3", "Nearest by the model's vectors"), list);
    }
    say(`${data.names[i]}${describe(i) ? `, ${describe(i)}` : ""}`);
    history.replaceState(null, "", `#picture-${data.row[i]}`);
    draw();
  }

  function say(words) {
    state.textContent = `${kept.length.toLocaleString("en")} of ${n.toLocaleString("en")} images shown${words ? `; ${words}` : ""}`;
  }

  function sift() {
    const only = at("map-only").value;
    kept = [];
    for (let i = 0; i < n; i++) {
      const wanted = only === "all" || (only === "suspects" && data.suspect[i]) || (only === "copies" && data.copy[i]);
      if (wanted && !hidden.has(data.label[i])) kept.push(i);
    }
    if (chosen >= 0 && !kept.includes(chosen)) pick(-1);
    hover(-1);
    say("");
    draw();
  }

  function nearest(x, y, reach) {
    let best = -1, least = reach * reach;
    for (const i of kept) {
      const [a, b] = place(i), d = (a - x) ** 2 + (b - y) ** 2;
      if (d <= least) [best, least] = [i, d];
    }
    return best;
  }

  function hover(i, x = 0, y = 0) {
    if (i !== hovered) {
      hovered = i;
      tip.replaceChildren();
      if (i >= 0) {
        const words = make("div");
        words.append(make("b", named(i)), make("code", data.names[i]));
        tip.append(thumbnail(i, "small"), words);
      }
      draw();
    }
    tip.hidden = i < 0;
    if (i >= 0) {
      tip.style.left = `${Math.max(4, Math.min(x + 14, side.w - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(4, y + 14 + tip.offsetHeight > side.h ? y - 14 - tip.offsetHeight : y + 14)}px`;
    }
  }

  function zoom(factor, x = side.w / 2, y = side.h / 2) {
    const scale = Math.max(1, Math.min(64, view.scale * factor));
    view.x += x / view.scale - x / scale;
    view.y += y / view.scale - y / scale;
    view.scale = scale;
    pan(0, 0);
  }

  function pan(x, y) {
    view.x = Math.max(0, Math.min(side.w - side.w / view.scale, view.x - x / view.scale));
    view.y = Math.max(0, Math.min(side.h - side.h / view.scale, view.y - y / view.scale));
    draw();
  }

  function whole() {
    view = {scale: 1, x: 0, y: 0};
    draw();
  }

  // The next point in a direction: near, and more ahead than aside.
  function step(a, b) {
    if (chosen < 0) return pick(nearest(side.w / 2, side.h / 2, 1e6));
    const [x, y] = place(chosen);
    let best = -1, least = Infinity;
    for (const i of kept) {
      const [c, d] = place(i), ahead = (c - x) * a + (d - y) * b, aside = Math.abs((c - x) * b) + Math.abs((d - y) * a);
      if (i !== chosen && ahead > 0.01 && ahead + 2.5 * aside < least) [best, least] = [i, ahead + 2.5 * aside];
    }
    if (best >= 0) pick(best);
    show(chosen);
  }

  function turn(by) {
    if (!kept.length) return;
    const here = kept.indexOf(chosen);
    pick(kept[(here < 0 ? (by > 0 ? 0 : kept.length - 1) : here + by + kept.length) % kept.length]);
    show(chosen);
  }

  function show(i) {
    const [x, y] = place(i);
    if (x < 0 || y < 0 || x > side.w || y > side.h) pan(side.w / 2 - x, side.h / 2 - y);
  }

  const keys = {
    ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
    PageDown: () => turn(1), PageUp: () => turn(-1), Home: () => kept.length && pick(kept[0]),
    End: () => kept.length && pick(kept[kept.length - 1]), Enter: () => chosen >= 0 && data.near[chosen].length && pick(data.near[chosen][0]),
    Escape: () => pick(-1), "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), "0": whole,
  };
  canvas.addEventListener("keydown", (event) => {
    if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  canvas.addEventListener("pointerdown", (event) => { drag = {x: event.offsetX, y: event.offsetY, far: 0}; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && event.buttons) {
      drag.far += Math.abs(event.offsetX - drag.x) + Math.abs(event.offsetY - drag.y);
      pan(event.offsetX - drag.x, event.offsetY - drag.y);
      [drag.x, drag.y] = [event.offsetX, event.offsetY];
    } else hover(nearest(event.offsetX, event.offsetY, 12), event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerleave", () => hover(-1));
  canvas.addEventListener("click", (event) => {
    if (!drag || drag.far < 6) pick(nearest(event.offsetX, event.offsetY, 14));
    drag = null;
  });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas) return; // do not zoom while the user scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY);
  }, {passive: false});
  at("map-in").addEventListener("click", () => zoom(1.5));
  at("map-out").addEventListener("click", () => zoom(1 / 1.5));
  at("map-whole").addEventListener("click", whole);
  at("map-only").addEventListener("change", sift);

  function swatch(label) {
    const made = make("canvas", "", "swatch");
    made.width = made.height = 32;
    const ink = made.getContext("2d");
    ink.fillStyle = colour(label);
    trace(ink, shape(label), 16, 16, 11);
    ink.fill();
    return made;
  }

  if (data.classes.length) {
    const boxes = [], list = at("map-classes");
    data.classes.forEach((name, label) => {
      const count = data.label.filter((each) => each === label).length;
      if (!count) return;
      const box = make("input");
      box.type = "checkbox";
      box.checked = true;
      box.addEventListener("change", () => { hidden[box.checked ? "delete" : "add"](label); sift(); });
      const row = make("label");
      row.append(box, swatch(label), make("span", name), make("small", count.toLocaleString("en")));
      list.append(row);
      boxes.push([box, label, name.toLowerCase(), row]);
    });
    const all = (on) => {
      for (const [box, label, , row] of boxes) {
        if (row.hidden) continue;
        box.checked = on;
        hidden[on ? "delete" : "add"](label);
      }
      sift();
    };
    at("map-all").addEventListener("click", () => all(true));
    at("map-none").addEventListener("click", () => all(false));
    at("map-find").addEventListener("input", (event) => {
      const wanted = event.target.value.trim().toLowerCase();
      for (const [, , name, row] of boxes) row.hidden = !name.includes(wanted);
    });
  }
  new ResizeObserver(() => pan(0, 0)).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  at("map-tools").hidden = false;
  pick(-1);
  sift();
  const linked = /^#picture-(\d+)$/.exec(location.hash);
  if (linked) pick(data.row.indexOf(Number(linked[1])));
})();
