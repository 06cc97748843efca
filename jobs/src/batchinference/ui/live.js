// Replaces the content of a page of running jobs, until all of them have ended.
const main = document.querySelector("main");
const footer = document.getElementById("connection");

async function update() {
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.querySelector("main");
    const open = [...main.querySelectorAll("details")].map((each) => each.open);
    const focusable = () => [...main.querySelectorAll("a, summary, [tabindex]")];
    const focused = focusable().indexOf(document.activeElement);
    main.replaceChildren(...found.childNodes);
    main.querySelectorAll("details").forEach((each, index) => { each.open = open[index] ?? false; });
    focusable()[focused]?.focus({ preventScroll: true });
    document.title = page.title;
    footer.textContent = page.getElementById("connection").textContent;
    if (!found.dataset.refresh) return;
  } catch {
    footer.textContent = "The program that serves this page does not answer. The figures are old.";
  }
  setTimeout(update, 1000 * main.dataset.refresh);
}

setTimeout(update, 1000 * main.dataset.refresh);
