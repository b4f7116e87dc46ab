"use strict";
// Runs the built site's own search worker in Node, and prints the first hits of each query as JSON.
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const code = fs.readFileSync(path.join(workers, fs.readdirSync(workers).find(name => /^search\..*\.js$/.test(name))), "utf8");
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3];
const found = {};
let listener;
const self = {
  addEventListener: (name, added) => { if (name === "message") listener = added; },
  postMessage: ({type, data}) => {
    if (type === READY) ask();
    if (type === RESULT) {
      found[queries[0]] = data.items.slice(0, 4).map(([first]) => first.location);
      queries.shift();
      ask();
    }
  },
  location: {href: "http://localhost/"}, console, setTimeout, URL, performance,
};
self.self = self.globalThis = self;
const ask = () => {
  if (queries.length) listener({data: {type: QUERY, data: queries[0]}});
  else process.stdout.write(JSON.stringify(found));
};
vm.runInNewContext(code, self);
listener({data: {type: SETUP, data: {config: index.config, docs: index.docs, options: {suggest: false}}}});
