// A point of a figure shows its title in a box when it is pointed at or tapped.
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll(".point > title")) {
  // The browser's own tip would cover the box.
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
const show = (event) => {
  const point = event.target.closest && event.target.closest(".point");
  tip.hidden = !point;
  if (!point) return;
  tip.textContent = point.dataset.tip;
  // Above the point, or below it where there is no room, and inside the window.
  const box = point.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - size.width - 8);
  const top = box.top - size.height - 6;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (top < 0 ? box.bottom + 6 : top) + "px";
};
addEventListener("pointerover", show);
addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// A table is copied as spreadsheets take it: tabs between cells. The buttons
// are hidden where there is no script.
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const { rows } = button.closest(".with-table").querySelector("table");
    const text = [...rows].map((row) => [...row.cells].map(
      (cell) => cell.textContent.trim()).join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here";
    }
  });
}
