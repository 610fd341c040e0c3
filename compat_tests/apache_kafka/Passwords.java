import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.security.PasswordEncoder;

/**
 * Answers each line of the input, "encode SECRET CIPHER KEY_LENGTH PASSWORD" or "decode SECRET CIPHER KEY_LENGTH TEXT",
 * with the result, or "error". Secret, password and text are in base64, and so is a decoded password.
 */
public class Passwords {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split(" ");
            PasswordEncoder encoder = PasswordEncoder.encrypting(
                new Password(decode(fields[1])), null, fields[2], Integer.parseInt(fields[3]), 4096);
            try {
                output.println(fields[0].equals("encode")
                    ? encoder.encode(new Password(decode(fields[4])))
                    : encode(encoder.decode(decode(fields[4])).value()));
            } catch (Exception error) {
                output.println("error");
            }
        }
        output.flush();
    }

    private static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
