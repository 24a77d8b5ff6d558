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
