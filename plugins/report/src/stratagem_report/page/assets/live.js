// While a run goes on: fetch the page again, and put what is new in the place of what was.
(() => {
  "use strict";
  const seconds = 2;
  const state = () => document.getElementById("live");
  const refresh = async () => {
    try {
      const answer = await fetch(location.href, {cache: "no-store", headers: {"If-None-Match": refresh.tag || ""}});
      if (answer.status === 200) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const id of ["main", "charts"]) document.getElementById(id).replaceWith(document.adoptNode(page.getElementById(id)));
        document.title = page.title;
        stratagemReport.refresh();
        refresh.tag = answer.headers.get("ETag");
      }
    } catch {
      state().textContent = "The report's server is gone: this page isn't refreshed any more.";
      return;
    }
    setTimeout(refresh, 1000 * seconds);
  };
  setTimeout(refresh, 1000 * seconds);
})();
