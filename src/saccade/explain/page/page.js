"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const TOP = 10;
  const FINE = 2500; // places of a map that are stops for the keyboard; finer ones are read with the pointer
  const HEAT = [[6, 4, 20], [110, 30, 125], [222, 73, 104], [254, 159, 109], [252, 253, 191]];
  const COLD = [[6, 4, 20], [30, 80, 160], [90, 160, 230], [200, 230, 255]];

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const floats = (text) => new Float32Array(bytes(text).buffer);
  const inflate = async (text) => {
    const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
  const make = (kind, name = "", text = "") => {
    const element = document.createElement(kind);
    if (name) element.className = name;
    if (text) element.textContent = text;
    return element;
  };

  // words

  const side = (row, column, rows, columns) => {
    const down = ["upper", "middle", "lower"][Math.floor((row * 3) / rows)];
    const across = ["left", "centre", "right"][Math.floor((column * 3) / columns)];
    if (across === "centre") return { upper: "top", middle: "middle", lower: "bottom" }[down];
    return down === "middle" ? across : `${down} ${across}`;
  };
  const placed = (i, rows, columns) => `row ${Math.floor(i / columns) + 1}, column ${(i % columns) + 1}`;
  const sided = (i, rows, columns) => side(Math.floor(i / columns), i % columns, rows, columns);
  const ranked = (values) => Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
  const largest = (values, start) => values.reduce((most, value) => Math.max(most, value), start);

  // colours

  const between = (stops, t) => {
    const at = Math.min(t, 0.9999) * (stops.length - 1);
    const low = Math.floor(at);
    return stops[low].map((value, i) => value + (stops[low + 1][i] - value) * (at - low));
  };
  const paint = (canvas, values, rows, columns, most) => {
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    values.forEach((value, i) => {
      const t = most > 0 ? Math.sqrt(Math.min(Math.abs(value) / most, 1)) : 0; // so that little is seen too
      const [r, g, b] = between(value < 0 ? COLD : HEAT, t);
      image.data.set([r, g, b, 255 * (0.1 + 0.75 * t)], 4 * i);
    });
    context.putImageData(image, 0, 0);
  };

  // a picture with a heat and a grid of places over it

  class Stage {
    constructor(root, choose, tell) {
      [this.root, this.choose, this.tell] = [root, choose, tell];
      this.canvas = root.querySelector("canvas");
      this.grid = root.querySelector("[role=grid]");
      this.grid.addEventListener("keydown", (event) => this.key(event));
      this.grid.addEventListener("click", (event) => this.pick(event.target));
      this.grid.addEventListener("focusin", (event) => this.look(event.target));
      root.addEventListener("pointermove", (event) => this.hover(event));
      root.addEventListener("pointerleave", () => this.tell(-1));
    }

    shape(rows, columns) {
      if (this.rows === rows && this.columns === columns) return;
      [this.rows, this.columns, this.cells] = [rows, columns, []];
      this.grid.replaceChildren();
      this.grid.hidden = rows * columns > FINE;
      if (this.grid.hidden) return;
      this.grid.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
      this.grid.style.gridTemplateRows = `repeat(${rows}, 1fr)`;
      for (let row = 0; row < rows; row++) {
        const line = make("div", "row");
        line.setAttribute("role", "row");
        for (let column = 0; column < columns; column++) {
          const cell = make("div", "cell");
          cell.setAttribute("role", "gridcell");
          cell.tabIndex = -1;
          this.cells.push(cell);
          line.append(cell);
        }
        this.grid.append(line);
      }
      this.stop(0);
    }

    show(values, rows, columns, most, said) {
      this.shape(rows, columns);
      paint(this.canvas, values, rows, columns, most);
      this.cells.forEach((cell, i) => cell.setAttribute("aria-label", `${placed(i, rows, columns)}: ${said(i)}`));
    }

    stop(i) {
      this.cells.forEach((cell, j) => { cell.tabIndex = i === j ? 0 : -1; });
    }

    mark(chosen) {
      this.cells.forEach((cell, i) => cell.setAttribute("aria-selected", i === chosen));
      if (chosen >= 0) this.stop(chosen);
    }

    point(i) {
      this.cells.forEach((cell, j) => cell.classList.toggle("pointed", i === j));
    }

    pick(cell) {
      const i = this.cells.indexOf(cell);
      if (i < 0) return;
      this.stop(i);
      this.choose(i);
    }

    look(cell) {
      this.tell(this.cells.indexOf(cell));
    }

    hover(event) {
      const box = this.root.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
      const inside = row >= 0 && column >= 0 && row < this.rows && column < this.columns;
      this.tell(inside ? row * this.columns + column : -1);
    }

    key(event) {
      const here = this.cells.indexOf(document.activeElement);
      if (here < 0) return;
      const [row, column] = [Math.floor(here / this.columns), here % this.columns];
      const moves = {
        ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
        ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
        Home: [row, 0], End: [row, this.columns - 1],
        PageUp: [0, column], PageDown: [this.rows - 1, column],
      };
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.pick(document.activeElement);
      } else if (moves[event.key]) {
        event.preventDefault();
        const [r, c] = moves[event.key];
        if (r < 0 || c < 0 || r >= this.rows || c >= this.columns) return;
        this.stop(r * this.columns + c);
        this.cells[r * this.columns + c].focus();
      }
    }
  }

  const fill = (body, rows, point) => {
    body.replaceChildren(...rows.map(({ rank, where, value, said, share, place }) => {
      const line = make("tr");
      const number = make("td", "n");
      const exact = make("data", "", said);
      exact.value = String(value);
      const bar = make("span", "bar");
      bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
      const [amount, track] = [make("span", "amount"), make("span", "track")];
      track.append(bar);
      amount.append(exact, track);
      number.append(amount);
      line.append(make("td", "n", String(rank)), make("td", "", where), number);
      line.dataset.place = place;
      line.addEventListener("pointerenter", () => point(place));
      line.addEventListener("pointerleave", () => point(-1));
      return line;
    }));
  };
  const checked = (name) => document.querySelector(`input[name=${name}]:checked`).value;
  const listen = (name, act) => document.querySelectorAll(`input[name=${name}]`).forEach((input) => input.addEventListener("change", act));

  // the evidence for a class

  const maps = () => {
    const stage = new Stage(find("map-stage"), () => {}, (i) => tell(i));
    let now = null;
    const readout = find("map-here");
    const tell = (i) => {
      readout.textContent = now === null || i < 0 ? "Point at the image, or move over it with the arrow keys."
        : `${placed(i, now.rows, now.columns)} (${sided(i, now.rows, now.columns)}): ${now.values[i].toPrecision(4)}, ${percent(Math.max(0, now.values[i]) / now.total)} of the heat`;
      stage.point(i);
    };
    const show = () => {
      const [method, target] = [checked("method"), Number(checked("class"))];
      const made = data.maps.filter((each) => each.method === method);
      const map = made.find((each) => each.target === target || each.target === null) || made[0];
      const other = map.target !== target && map.target !== null;
      const values = floats(map.values);
      const heat = Array.from(values, (value) => Math.max(0, value));
      const total = heat.reduce((a, b) => a + b, 0) || 1;
      const most = largest(values.map(Math.abs), 0);
      now = { ...map, values, total };
      stage.show(values, map.rows, map.columns, most, (i) => `${percent(heat[i] / total)} of the heat`);
      find("map-canvas").setAttribute("aria-label", map.alt);
      find("map-summary").textContent = other ? `${map.summary} This method is slow: its map was made for this class only.` : map.summary;
      find("map-score").textContent = map.verdict;
      find("map-score").className = `verdict ${map.good === null ? "" : map.good ? "good" : "bad"}`;
      find("map-key").hidden = !values.some((value) => value < 0);
      fill(find("map-rows"), ranked(values).slice(0, TOP).map((i, rank) => ({
        rank: rank + 1, where: `${placed(i, map.rows, map.columns)} · ${sided(i, map.rows, map.columns)}`, place: i,
        value: values[i], said: `${percent(heat[i] / total)}`, share: heat[i] / (heat[ranked(values)[0]] || 1),
      })), (i) => tell(i));
      tell(-1);
    };
    listen("method", show);
    listen("class", show);
    show();
  };

  // what a token attends to

  const attention = async (it) => {
    const levels = await inflate(it.levels);
    const scale = floats(it.scale);
    const [rows, columns] = it.grid;
    const [front, n] = [it.front.length, it.front.length + rows * columns];
    let token = front ? 0 : Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const row = (layer, head, from) => {
      const line = (layer * it.kept + head) * n + from;
      return Float64Array.from(levels.subarray(line * n, line * n + n), (level) => level * scale[line]);
    };
    const looks = (layer, head, from) => {
      if (head >= 0) return row(layer, head, from);
      const sum = new Float64Array(n);
      for (let h = 0; h < it.kept; h++) row(layer, h, from).forEach((value, i) => { sum[i] += value / it.kept; });
      return sum;
    };
    const named = (i) => (i < front ? `the ${it.front[i]}` : `the patch in ${placed(i - front, rows, columns)}`);
    const stage = new Stage(find("gaze-stage"), (i) => ask(front + i), (i) => tell(i));
    const fronts = find("fronts");
    const readout = find("gaze-here");
    const slider = find("layer");
    let now = null;
    const tell = (i) => {
      readout.textContent = now === null || i < 0 ? "Click a patch to see what it attends to; with the keyboard, move with the arrows and press Enter."
        : `${placed(i, rows, columns)} (${sided(i, rows, columns)}): ${percent(now[front + i], 2)} of the attention`;
      stage.point(i);
    };
    const ask = (from) => {
      token = from;
      show();
    };
    it.front.forEach((name, i) => {
      const button = make("button", "token", name[0].toUpperCase() + name.slice(1));
      button.type = "button";
      button.addEventListener("click", () => ask(i));
      fronts.append(button);
    });
    const atlas = find("atlas");
    const tiles = [];
    const heads = it.kept > 1 ? [-1, ...Array(it.kept).keys()] : [-1];
    atlas.style.gridTemplateColumns = `auto repeat(${it.layers.length}, minmax(1.1rem, 1fr))`;
    atlas.append(make("span", "corner", "layer"), ...it.layers.map((layer) => make("span", "top", String(layer + 1))));
    heads.forEach((head) => {
      atlas.append(make("span", "left", head < 0 ? "mean" : `head ${head + 1}`));
      it.layers.forEach((number, layer) => {
        const tile = make("canvas");
        tile.title = `Layer ${number + 1}, ${head < 0 ? "mean over heads" : `head ${head + 1}`}`;
        tile.style.aspectRatio = `${columns} / ${rows}`;
        tile.addEventListener("click", () => {
          slider.value = layer + 1;
          const radio = document.querySelector(`input[name=head][value="${head}"]`);
          if (radio) radio.checked = true;
          show();
        });
        tiles.push({ tile, layer, head });
        atlas.append(tile);
      });
    });
    const show = () => {
      const layer = Number(slider.value) - 1;
      const head = it.kept > 1 ? Number(checked("head")) : -1;
      now = looks(layer, head, token);
      const patches = now.subarray(front);
      const most = largest(patches, 0);
      stage.show(patches, rows, columns, most, (i) => `${percent(patches[i], 2)} of the attention; Enter chooses this patch`);
      stage.mark(token - front);
      Array.from(fronts.children).forEach((button, i) => button.setAttribute("aria-pressed", i === token));
      const number = it.layers[layer] + 1;
      find("layer-said").textContent = `${number} of ${it.depth}`;
      const which = head < 0 ? (it.heads > 1 ? `the mean of its ${it.heads} heads` : "its one head") : `head ${head + 1}`;
      const order = ranked(now);
      const best = ranked(patches)[0];
      const tenth = ranked(patches).slice(0, Math.ceil(patches.length / 10)).reduce((sum, i) => sum + patches[i], 0);
      const kept = front ? `; ${percent(now.subarray(0, front).reduce((a, b) => a + b, 0))} goes to ${it.front.length > 1 ? "the tokens before the patches" : "the class token"}` : "";
      const summary = `In layer ${number}, ${which}, ${named(token)} attends most to ${placed(best, rows, columns)} (${sided(best, rows, columns)}, ${percent(patches[best], 2)}). The top tenth of the patches takes ${percent(tenth)} of the attention${kept}.`;
      find("gaze-summary").textContent = summary;
      find("gaze-canvas").setAttribute("aria-label", `Heat map of attention: ${summary}`);
      fill(find("gaze-rows"), order.slice(0, TOP).map((i, rank) => ({
        rank: rank + 1, where: i < front ? it.front[i] : `${placed(i - front, rows, columns)} · ${sided(i - front, rows, columns)}`,
        place: i - front, value: now[i], said: percent(now[i], 2), share: now[i] / (now[order[0]] || 1),
      })), (i) => tell(i));
      for (const { tile, layer: at, head: h } of tiles) {
        const values = looks(at, h, token).subarray(front);
        paint(tile, values, rows, columns, largest(values, 0));
        tile.classList.toggle("chosen", at === layer && h === head);
      }
      tell(-1);
    };
    slider.addEventListener("input", show);
    listen("head", show);
    show();
  };

  // the look of both pictures

  const strength = () => document.documentElement.style.setProperty("--heat", find("strength").value / 100);
  const look = (id, name) => find(id).addEventListener("change", (event) => document.body.classList.toggle(name, event.target.checked));
  find("strength").addEventListener("input", strength);
  look("smooth", "smooth");
  look("lines", "lines");
  document.body.classList.toggle("lines", find("lines").checked);
  document.body.classList.toggle("smooth", find("smooth").checked);
  strength();
  maps();
  const ready = data.attention ? attention(data.attention) : Promise.resolve();
  ready.then(() => document.documentElement.setAttribute("data-ready", ""));
})();
