"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const inflate = async (text) => {
    const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };

  const begin = async (look) => {
    const [layers, heads, rows, columns] = look.shape;
    const levels = await inflate(look.levels);
    const words = Array.from(find(`${look.name}-columns`).children);
    const buttons = Array.from(find(`${look.name}-rows`).children);
    const layer = find(`${look.name}-layer`);
    const head = find(`${look.name}-head`);
    let chosen = 0;

    const row = () => {
      const at = layer ? Number(layer.value) : 0;
      const which = head ? Number(head.value) : 0;
      const used = which < 0 ? Array.from({ length: heads }, (_, i) => i) : [which];
      return words.map((_, j) => {
        const sum = used.reduce((s, h) => s + levels[((at * heads + h) * rows + chosen) * columns + j], 0);
        return sum / used.length / 255;
      });
    };
    const show = () => {
      const shares = row();
      words.forEach((word, j) => word.style.setProperty("--share", shares[j].toFixed(3)));
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
      const best = shares.map((share, j) => [share, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      const summary = best.map(([share, j]) => `${words[j].textContent} ${(100 * share).toFixed(0)}%`);
      find(`${look.name}-summary`).textContent = `${buttons[chosen].textContent}: ${summary.join(", ")}`;
    };
    buttons.forEach((button, i) => {
      for (const event of ["click", "focus", "pointerenter"]) {
        button.addEventListener(event, () => {
          chosen = i;
          show();
        });
      }
    });
    for (const select of [layer, head]) if (select) select.addEventListener("change", show);
    find(`${look.name}-stage`).hidden = false;
    show();
  };

  JSON.parse(find("data").textContent).forEach(begin);
})();
