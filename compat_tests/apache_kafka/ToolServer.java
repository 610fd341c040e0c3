import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after another in one JVM, each as if it had a process of its own.
 *
 * A request is the standard input, the class and its arguments; a response is the exit code, the output and the errors.
 * A tool ends with its first call of Exit: what it prints afterwards, because it catches the exception, is dropped.
 */
public class ToolServer {
    /** The run of the thread's tool; threads of an earlier tool may still exist. */
    private static final InheritableThreadLocal<Run> OWN = new InheritableThreadLocal<>();
    private static volatile Run latest;

    private static final class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    private record Result(int code, byte[] output, byte[] errors) {}

    private static final class Run {
        final InputStream input;
        final ByteArrayOutputStream output = new ByteArrayOutputStream();
        final ByteArrayOutputStream errors = new ByteArrayOutputStream();
        final CompletableFuture<Result> result = new CompletableFuture<>();
        final List<Runnable> hooks = new CopyOnWriteArrayList<>();
        final AtomicBoolean isEnding = new AtomicBoolean();

        Run(byte[] input) {
            this.input = new ByteArrayInputStream(input);
        }

        /** End like a JVM, which runs its hooks first. Only the first call has an effect. */
        void end(int code) {
            if (!isEnding.compareAndSet(false, true)) {
                return;
            }
            for (Runnable hook : hooks) {
                try {
                    hook.run();
                } catch (RuntimeException error) {
                    error.printStackTrace();
                }
            }
            System.out.flush();
            System.err.flush();
            result.complete(new Result(code, output.toByteArray(), errors.toByteArray()));
        }

        void call(String tool, String[] arguments) {
            OWN.set(this);
            try {
                Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
                end(0);
            } catch (InvocationTargetException error) {
                if (!(error.getCause() instanceof Ended)) {
                    System.err.print("Exception in thread \"main\" ");
                    error.getCause().printStackTrace();
                    end(1);
                }
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
                end(1);
            }
        }
    }

    /** Return a stream to the output or the errors of the current tool, of whichever thread. */
    private static PrintStream toCurrent(Function<Run, OutputStream> find) {
        OutputStream stream = new OutputStream() {
            @Override
            public void write(int one) throws IOException {
                find.apply(find()).write(one);
            }

            @Override
            public void write(byte[] bytes, int from, int count) throws IOException {
                find.apply(find()).write(bytes, from, count);
            }
        };
        return new PrintStream(stream, true, Charset.defaultCharset());
    }

    private static Run find() {
        Run own = OWN.get();
        return own == null ? latest : own;
    }

    private static void end(int code, String message) {
        if (message != null) {
            System.err.println(message);
        }
        find().end(code);
        throw new Ended();
    }

    private static byte[] read(DataInputStream requests) throws IOException {
        return requests.readNBytes(requests.readInt());
    }

    private static void write(DataOutputStream responses, byte[] bytes) throws IOException {
        responses.writeInt(bytes.length);
        responses.write(bytes);
    }

    public static void main(String[] ignored) throws Exception {
        DataInputStream requests = new DataInputStream(new FileInputStream(FileDescriptor.in));
        DataOutputStream responses = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
        latest = new Run(new byte[0]);
        System.setOut(toCurrent(run -> run.output));
        System.setErr(toCurrent(run -> run.errors));
        System.setIn(new InputStream() {
            @Override
            public int read() throws IOException {
                return find().input.read();
            }

            @Override
            public int read(byte[] bytes, int from, int count) throws IOException {
                return find().input.read(bytes, from, count);
            }
        });
        Exit.setExitProcedure(ToolServer::end);
        Exit.setHaltProcedure(ToolServer::end);
        Exit.setShutdownHookAdder((name, hook) -> find().hooks.add(hook));
        while (true) {
            try {
                Run run = new Run(read(requests));
                String tool = new String(read(requests), StandardCharsets.UTF_8);
                String[] arguments = new String[requests.readInt()];
                for (int i = 0; i < arguments.length; i++) {
                    arguments[i] = new String(read(requests), StandardCharsets.UTF_8);
                }
                latest = run;
                Thread thread = new Thread(() -> run.call(tool, arguments), "main");
                thread.setDaemon(true);
                thread.start();
                Result result = run.result.get();
                responses.writeInt(result.code);
                write(responses, result.output);
                write(responses, result.errors);
                responses.flush();
            } catch (EOFException error) {
                Runtime.getRuntime().halt(0);
            }
        }
    }
}
