// Browsers start no worker for a page that is opened from a disk, and the search wants one. This one runs its
// script in a hidden frame, so in the page's own thread: quick enough for an index of this size.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = new URL(address, document.baseURI);
          script.onload = resolve;
          script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
          inside.document.body.append(script);
        });
      // What a worker's script calls.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = async (...addresses) => {
        for (const address of addresses) await load(address);
      };
      this.ready = load(url);
    }

    async postMessage(data) {
      await this.ready;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
