"""What the course needs beside the library: graders of exercises, the table of claims."""
