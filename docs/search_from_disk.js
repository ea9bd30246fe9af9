// Browsers start no worker from file:// pages. There the search runs in a hidden frame that looks like one.
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement('iframe');
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      window.addEventListener('message', event => {
        if (event.source !== inside) return;
        const told = new MessageEvent('message', {data: event.data});
        this.dispatchEvent(told);
        if (this.onmessage) this.onmessage(told);
      });
      this.ready = new Promise(done => {
        inside.document.open();
        inside.document.write(`<script>postMessage = data => parent.postMessage(data, '*');
          importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(done => {
            const script = document.createElement('script');
            script.src = url; script.onload = done; document.body.append(script);
          })), Promise.resolve());</` + `script><body><script src="${url}"></` + 'script>');
        inside.document.close();
        inside.onload = done;
      });
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent('message', {data: copy})));
    }
    terminate() { this.frame.remove(); }
  };
}
