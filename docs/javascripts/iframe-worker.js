/* Search without a server. A browser starts no worker from a page that was opened as a file; there, and only there, the
   search runs in a hidden frame instead, which looks to the theme like a worker. */
(function () {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const start = () => {
        document.body.appendChild(this.frame);
        this.open(new URL(address, document.baseURI).href);
      };
      if (document.body) start();
      else document.addEventListener("DOMContentLoaded", start);
    }

    open(address) {
      const inside = this.frame.contentWindow;
      /* The worker's own postMessage leads to the page, and what the page posts arrives as an event inside. */
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.load(script)), Promise.resolve());
      this.load(address).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.deliver(data));
      });
    }

    load(address) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = address;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${address}`));
        this.frame.contentDocument.body.appendChild(script);
      });
    }

    deliver(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.ready) this.deliver(data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = FrameWorker;
  window.Worker = FrameWorker;
})();
