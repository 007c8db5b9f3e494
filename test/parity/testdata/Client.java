import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;

/** Makes the call of the test that its first argument names, at the URL of the second, and prints what came of it. */
public class Client {
    public static void main(String[] args) throws Exception {
        String at = args[1];
        URI echo = URI.create(at + "/echo");
        HttpClient offers = HttpClient.newHttpClient();
        HttpClient http1 = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpRequest get = HttpRequest.newBuilder(echo).build();
        byte[] large = new byte[300_000];
        String said;
        switch (args[0]) {
            case "GET, HTTP/1.1" -> said = send(http1, get);
            case "GET, h2c offered" -> said = send(offers, get);
            case "two GETs, h2c offered" -> said = send(offers, get) + ", " + send(offers, get);
            case "POST of 300 kB, h2c offered" ->
                said = send(offers, HttpRequest.newBuilder(echo).POST(BodyPublishers.ofByteArray(large)).build());
            case "POST with 100-continue" ->
                said = send(http1, HttpRequest.newBuilder(echo).expectContinue(true).POST(BodyPublishers.ofString("hello")).build());
            case "chunked POST by java.net" -> said = old(echo, large);
            case "WebSocket" -> said = webSocket(offers, URI.create(at.replaceFirst("http", "ws") + "/chat"));
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println(said);
    }

    static String send(HttpClient client, HttpRequest request) throws Exception {
        HttpResponse<byte[]> answer = client.send(request, BodyHandlers.ofByteArray());
        return answer.version() + " " + answer.statusCode() + " " + answer.body().length;
    }

    static String old(URI at, byte[] body) throws Exception {
        HttpURLConnection c = (HttpURLConnection) at.toURL().openConnection();
        c.setDoOutput(true);
        c.setChunkedStreamingMode(8192);
        try (OutputStream out = c.getOutputStream()) {
            out.write(body);
        }
        try (InputStream in = c.getInputStream()) {
            return c.getResponseCode() + " " + in.readAllBytes().length;
        }
    }

    static String webSocket(HttpClient client, URI at) throws Exception {
        CompletableFuture<String> ended = new CompletableFuture<>();
        StringBuilder came = new StringBuilder();
        // Go's package of the test's server wants the header.
        WebSocket c = client.newWebSocketBuilder().header("Origin", "http://example.com").buildAsync(at, new WebSocket.Listener() {
            @Override
            public CompletionStage<?> onText(WebSocket c, CharSequence text, boolean last) {
                came.append(text);
                if (came.toString().equals("hello there")) {
                    c.sendClose(WebSocket.NORMAL_CLOSURE, "");
                }
                c.request(1);
                return null;
            }

            @Override
            public CompletionStage<?> onClose(WebSocket c, int status, String reason) {
                ended.complete(came + ", closed " + status);
                return null;
            }

            @Override
            public void onError(WebSocket c, Throwable error) {
                ended.complete(came + ", " + error);
            }
        }).join();
        c.sendText("hello", true).join();
        c.sendText(" there", true).join();
        return ended.get();
    }
}
