"use strict";
(() => {
  // Numbers before words, nothing last, whichever way a column is sorted.
  const compare = (one, other, way) => {
    const a = one.trim(), b = other.trim();
    if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);
    const x = Number(a), y = Number(b), numbers = !Number.isNaN(x) && !Number.isNaN(y);
    return way * (numbers ? x - y : a.localeCompare(b, undefined, {numeric: true}));
  };

  // Tables of one section keep their rows in one order: sorting one sorts all.
  const tablesWith = (table) => {
    const section = table.closest(".together");
    return section ? [...section.querySelectorAll("table")] : [table];
  };

  const sortBy = (heading) => {
    const table = heading.closest("table"), column = heading.cellIndex;
    const first = heading.classList.contains("left") || column === 0 ? "ascending" : "descending";
    const now = heading.getAttribute("aria-sort");
    const next = !now ? first : now === "ascending" ? "descending" : "ascending";
    const way = next === "ascending" ? 1 : -1;
    const order = [...table.tBodies[0].rows]
      .map((row) => ({key: row.cells[column].dataset.v, at: Number(row.dataset.row)}))
      .sort((a, b) => compare(a.key, b.key, way) || a.at - b.at)
      .map((each) => each.at);
    for (const each of tablesWith(table)) {
      each.querySelectorAll("[aria-sort]").forEach((old) => old.removeAttribute("aria-sort"));
      const rows = new Map([...each.tBodies[0].rows].map((row) => [Number(row.dataset.row), row]));
      each.tBodies[0].append(...order.map((at) => rows.get(at)));
    }
    heading.setAttribute("aria-sort", next);
  };

  const filterRows = (section, text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = new Map();
    const tables = [...section.querySelectorAll("table")];
    for (const table of tables)
      for (const row of table.tBodies[0].rows)
        texts.set(row.dataset.row, `${texts.get(row.dataset.row) || ""} ${row.textContent.toLowerCase()}`);
    const fits = (at) => words.every((word) => texts.get(at).includes(word));
    for (const table of tables)
      for (const row of table.tBodies[0].rows) row.hidden = !fits(row.dataset.row);
    const shown = [...texts.keys()].filter(fits).length;
    section.querySelector("output").textContent = `${shown} of ${texts.size} ${section.dataset.what}`;
  };

  for (const section of document.querySelectorAll(".together")) {
    const field = section.querySelector("input");
    section.querySelector(".filter").hidden = false;
    field.addEventListener("input", () => filterRows(section, field.value));
    filterRows(section, field.value);
  }
  document.addEventListener("click", (event) => {
    const sort = event.target.closest(".sort"), zoom = event.target.closest(".zoom");
    if (sort) sortBy(sort.closest("th"));
    if (zoom) enlarge(zoom);
  });

  // One picture over the whole window: wheel, two fingers, buttons or keys enlarge it, dragging moves it.
  const dialog = document.createElement("dialog");
  dialog.innerHTML = `<div class=bar><span></span><button data-do=in aria-label="larger">+</button>
    <button data-do=out aria-label="smaller">−</button><button data-do=fit aria-label="whole">fit</button>
    <button data-do=close aria-label="close">×</button></div><div class=stage></div>`;
  document.body.append(dialog);
  const stage = dialog.querySelector(".stage");
  const view = {picture: null, x: 0, y: 0, scale: 1, whole: 1, width: 1, height: 1};
  const fingers = new Map();

  const draw = () => {
    view.picture.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.scale})`;
    view.picture.dataset.scale = (view.scale / view.whole).toFixed(3);
  };

  const fit = () => {
    const room = stage.getBoundingClientRect();
    view.whole = view.scale = Math.min(room.width / view.width, room.height / view.height);
    view.x = (room.width - view.width * view.scale) / 2;
    view.y = (room.height - view.height * view.scale) / 2;
    draw();
  };

  const zoomAt = (x, y, factor) => {
    const scale = Math.min(Math.max(view.scale * factor, view.whole / 2), view.whole * 40);
    view.x = x - (x - view.x) * scale / view.scale;
    view.y = y - (y - view.y) * scale / view.scale;
    view.scale = scale;
    draw();
  };

  const zoomMiddle = (factor) => {
    const room = stage.getBoundingClientRect();
    zoomAt(room.width / 2, room.height / 2, factor);
  };

  const enlarge = (button) => {
    const shown = button.querySelector("svg, img"), box = shown.viewBox && shown.viewBox.baseVal;
    view.picture = shown.cloneNode(true);
    view.width = box ? box.width : shown.naturalWidth;
    view.height = box ? box.height : shown.naturalHeight;
    view.picture.style.width = `${view.width}px`;
    view.picture.style.height = `${view.height}px`;
    view.picture.draggable = false;
    stage.replaceChildren(view.picture);
    dialog.querySelector("span").textContent = shown.alt || shown.getAttribute("aria-label");
    dialog.showModal();
    fit();
  };

  const doThis = {in: () => zoomMiddle(1.5), out: () => zoomMiddle(1 / 1.5), fit, close: () => dialog.close()};
  dialog.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) doThis[button.dataset.do]();
  });
  dialog.addEventListener("keydown", (event) => {
    const name = {"+": "in", "=": "in", "-": "out", "0": "fit"}[event.key];
    if (name) doThis[name]();
  });
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const room = stage.getBoundingClientRect();
    zoomAt(event.clientX - room.x, event.clientY - room.y, Math.exp(-event.deltaY / 400));
  }, {passive: false});
  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  stage.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const other = [...fingers.entries()].find(([id]) => id !== event.pointerId);
    if (other) {
      const room = stage.getBoundingClientRect(), far = ([x, y]) => Math.hypot(x - other[1][0], y - other[1][1]);
      zoomAt((now[0] + other[1][0]) / 2 - room.x, (now[1] + other[1][1]) / 2 - room.y, far(now) / Math.max(far(before), 1));
    } else {
      view.x += now[0] - before[0];
      view.y += now[1] - before[1];
      draw();
    }
    fingers.set(event.pointerId, now);
  });
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, (event) => fingers.delete(event.pointerId));
  window.addEventListener("resize", () => { if (dialog.open) fit(); });
})();
