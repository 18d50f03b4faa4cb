"use strict";
{
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const points = read("points");
  const views = [];
  const chips = [...document.querySelectorAll("[data-key]")];
  let pinned = [];

  const signal = (name, value) => {
    for (const view of views) {
      if (name in view.getState().signals) view.signal(name, value).runAsync();
    }
  };

  const show = (keys) => {
    signal("picked", keys);
    for (const chip of chips) chip.classList.toggle("faded", keys.length > 0 && !keys.includes(chip.dataset.key));
  };

  const listen = (view) => {
    let pointed = null;
    const point = (key) => {
      if (key === pointed) return;
      pointed = key;
      show(key && pinned.length === 0 ? [key] : pinned);
    };
    view.addEventListener("pointermove", (_event, item) => {
      const datum = item && item.datum;
      point((datum && (datum.datum || datum).key) || null);
    });
    view.addEventListener("pointerout", () => point(null));
  };

  for (const { name, spec } of read("charts")) {
    const place = document.getElementById(name);
    const options = {
      mode: "vega-lite",
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: name,
    };
    if (window.innerWidth < 600) spec.height = Math.min(spec.height, 280);
    vegaEmbed(place, { ...spec, datasets: { points } }, options)
      .then(({ view }) => {
        views.push(view);
        listen(view);
      })
      .catch((error) => {
        place.textContent = `This chart cannot be drawn: ${error.message}`;
      });
  }

  for (const chip of chips) {
    const key = chip.dataset.key;
    chip.addEventListener("pointerenter", () => show([...pinned, key]));
    chip.addEventListener("pointerleave", () => show(pinned));
    chip.addEventListener("click", () => {
      pinned = pinned.includes(key) ? pinned.filter((other) => other !== key) : [...pinned, key];
      chip.setAttribute("aria-pressed", String(pinned.includes(key)));
      show(pinned);
    });
  }

  for (const input of document.querySelectorAll("[data-signal]")) {
    input.addEventListener("change", () => signal(input.dataset.signal, input.type === "checkbox" ? input.checked : input.value));
  }

  for (const button of document.querySelectorAll("[data-copies]")) {
    const source = document.getElementById(button.dataset.copies);
    button.addEventListener("click", () => {
      const done = () => (button.textContent = "Copied");
      const select = () => window.getSelection().selectAllChildren(source);
      navigator.clipboard ? navigator.clipboard.writeText(source.textContent).then(done, select) : select();
    });
  }
}
