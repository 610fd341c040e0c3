import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Answers each line of the input with a line. "name DER" is answered with the distinguished name, and
 * "map RULES NAME" with the name by Apache Kafka's rules, or "error". All fields are in base64.
 */
public class Principals {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split(" ", -1);
            String answer;
            try {
                byte[] first = Base64.getDecoder().decode(fields[1]);
                String found = fields[0].equals("name")
                    ? new X500Principal(first).getName()
                    : SslPrincipalMapper.fromRules(new String(first, StandardCharsets.UTF_8))
                        .getName(new String(Base64.getDecoder().decode(fields[2]), StandardCharsets.UTF_8));
                answer = "ok " + Base64.getEncoder().encodeToString(found.getBytes(StandardCharsets.UTF_8));
            } catch (Exception error) {
                answer = "error";
            }
            output.println(answer);
        }
        output.flush();
    }
}
